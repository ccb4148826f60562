"""Fetches the files of a hub id through huggingface_hub: its cache, its progress bars, its offline variables."""

from pathlib import Path

from armillary.anatomy.checkpoint import INDEX, expanded, hub_reachable, looks_like_path
from armillary.anatomy.folder import index_names, read_json, refuse_outside
from armillary.anatomy.whole import in_one_line
from armillary.errors import ArmillaryError

# Imports inside functions: huggingface_hub is needed for hub ids alone.

SINGLE = "model.safetensors"


def is_hub_id(source: str | Path) -> bool:
    """Whether this is neither something on this machine nor meant as a path."""
    place = expanded(source)
    return not Path(place).exists() and not looks_like_path(place)


def commit_of(folder: Path) -> str | None:
    """The commit of a snapshot in the hub's cache, which is its folder's name; None for other folders."""
    return folder.name if folder.parent.name == "snapshots" else None


def cached_commit(source: str | Path, revision: str | None) -> str | None:
    """The commit of a hub id that was just loaded; None for files on this machine."""
    from huggingface_hub import try_to_load_from_cache

    if not is_hub_id(source):
        return None
    config = try_to_load_from_cache(str(source), "config.json", revision=revision)
    return commit_of(Path(config).parent) if isinstance(config, str) else revision


def fetched(source: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model's configuration and safetensors: itself, or of a hub id the snapshot in the cache.

    Files that the cache lacks are downloaded, all of one commit; pickles and other formats are not.
    """
    if not is_hub_id(source):
        return Path(expanded(source))
    folder = _fetch(source, "config.json", revision).parent
    commit = commit_of(folder) or revision
    named = read_json(folder / "config.json").get("transformers_weights")
    wanted = [str(named)] if named is not None else [SINGLE, INDEX]
    for name in wanted:
        refuse_outside(folder / "config.json", name)
        file = _fetch_if_there(source, name, commit)
        if file is not None:
            if name.endswith(".json"):
                _fetch_shards(source, file, commit)
            return folder
    raise ArmillaryError(
        f"{source} has no {' and no '.join(wanted)} on the hub, or none in the cache while the hub cannot be reached",
        advice="if it has pytorch_model.bin alone, download it into a folder and run  armillary convert FOLDER",
    )


def fetched_adapter(source: str | Path) -> Path:
    """The folder of an adapter: itself, or of a hub id the snapshot in the cache."""
    if not is_hub_id(source):
        return Path(expanded(source))
    folder = _fetch(source, "adapter_config.json", None).parent
    _fetch(source, "adapter_model.safetensors", commit_of(folder))
    return folder


def _fetch_shards(source: str | Path, index: Path, revision: str | None) -> None:
    names = index_names(index)
    for name in names:
        refuse_outside(index, name)
    for name in names:
        _fetch(source, name, revision)


def _fetch(source: str | Path, name: str, revision: str | None) -> Path:
    """A file of a hub id; raises if there is none."""
    file = _fetch_if_there(source, name, revision)
    if file is None:
        at = f" at revision {revision}" if revision else ""
        raise ArmillaryError(
            f"{source} is neither a folder here nor a model with {name} that could be fetched from the hub{at}",
            advice="check the name and the revision, and, if the hub cannot be reached, whether it is in the cache",
        )
    return file


def _fetch_if_there(source: str | Path, name: str, revision: str | None) -> Path | None:
    """A file of a hub id, from the cache or downloaded; None if the repository, the revision or the file is missing."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.errors import RevisionNotFoundError as NoRevision

    try:
        return Path(hf_hub_download(str(source), name, revision=revision, local_files_only=not hub_reachable()))
    except GatedRepoError as error:
        raise ArmillaryError(
            f"{source} is gated on the hub", advice="accept its terms there, then log in with  hf auth login"
        ) from error
    except (EntryNotFoundError, RepositoryNotFoundError, NoRevision):  # also 'not in the cache' while offline
        return None
    except HFValidationError as error:
        raise ArmillaryError(f"{source} is neither a folder here nor a hub id ({in_one_line(error, 150)})") from error
    except Exception as error:  # connections, proxies and full disks each raise their own
        raise ArmillaryError(
            f"{name} of {source} cannot be fetched from the hub ({in_one_line(error, 200)})", advice="try again"
        ) from error
