"""Mutations of config.json."""

import json
import random
from pathlib import Path
from typing import Any

from faults.mutation import FREE, REFUSE, SAME, sentinel

ODD: tuple[Any, ...] = (
    None,
    True,
    "",
    "six",
    "6",
    -1,
    0,
    1,
    2,
    3,
    0.5,
    1e308,
    -1e-3,
    10**9,
    10**12,
    10**400,
    [],
    [1, 2],
    {},
    {"a": {}},
    float("nan"),
    "\N{SNOWMAN}",
    "../x",
)


def read_config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def put_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def config_value(folder: Path, rng: random.Random) -> tuple[str, str]:
    config = read_config(folder)
    key = rng.choice(sorted(config))
    config[key] = rng.choice(ODD)
    put_config(folder, config)
    return FREE, f"{key} = {str(config[key])[:40]!r}"


def config_size(folder: Path, rng: random.Random) -> tuple[str, str]:
    """A size that is a little or absurdly other."""
    config = read_config(folder)
    key = rng.choice(
        [key for key, value in sorted(config.items()) if isinstance(value, int) and not isinstance(value, bool)]
    )
    config[key] = rng.choice(
        (
            config[key] + 1,
            config[key] - 1,
            2 * config[key],
            config[key] // 2,
            10**9,
            10**15,
            -config[key],
            float(config[key]),
            str(config[key]),
        )
    )
    put_config(folder, config)
    return FREE, f"{key} = {config[key]!r}"


def config_key(folder: Path, rng: random.Random) -> tuple[str, str]:
    config = read_config(folder)
    key = rng.choice(sorted(config))
    del config[key]
    put_config(folder, config)
    return FREE, f"no {key}"


def config_harmless(folder: Path, rng: random.Random) -> tuple[str, str]:
    config = read_config(folder)
    config |= rng.choice(
        (
            {"note": "mine"},
            {"_name_or_path": "elsewhere"},
            {"transformers_version": "0.0.1"},
            {"task_specific_params": {"x": 1}},
        )
    )
    put_config(folder, config)
    return SAME, "a key on which no number depends"


def config_special(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Settings that reach into other parts of transformers."""
    config = read_config(folder)
    change: dict[str, Any] = rng.choice(
        (
            {"model_type": rng.choice(("gpt2", "bert", "mistral", "homemade", "", None, 7, "os.system", "t5"))},
            {
                "architectures": rng.choice(
                    (
                        ["GPT2LMHeadModel"],
                        ["BertModel"],
                        [],
                        ["os.system"],
                        "LlamaForCausalLM",
                        [7],
                        None,
                        ["PreTrainedModel"],
                    )
                )
            },
            {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}},
            {
                "quantization_config": rng.choice(
                    ({"quant_method": "bitsandbytes"}, {"quant_method": "gptq", "bits": 4}, "x", {})
                )
            },
            {"_attn_implementation": rng.choice(("flash_attention_2", "nonsense", "eager"))},
            {
                "rope_parameters": rng.choice(
                    (
                        {"rope_type": "default", "rope_theta": -1.0},
                        {"rope_type": "x"},
                        {"rope_type": "yarn"},
                        {"rope_theta": 0},
                        7,
                        {"rope_type": "default", "rope_theta": float("inf")},
                    )
                )
            },
            {"dtype": rng.choice(("float16", "int8", "float99", 7, "../x"))},
            {"tie_word_embeddings": rng.choice((True, False))},
            {
                "layer_types": rng.choice(
                    (["full_attention"] * 3, ["sliding_attention"] * 3, ["x"] * 3, ["full_attention"])
                )
            },
            {"armillary_rotary": rng.choice(({"p": 2}, {"p": -1}, {"x": 1}, 7, "p"))},
        )
    )
    config |= change
    if "auto_map" in change:
        (folder / "evil.py").write_text(f"open({str(sentinel(folder))!r}, 'w')\n")
        config["model_type"] = rng.choice((config.get("model_type"), "homemade"))
    put_config(folder, config)
    return FREE, str(change)


def config_text(folder: Path, rng: random.Random) -> tuple[str, str]:
    """The file itself: cut, nested, in another encoding, with something after it."""
    path = folder / "config.json"
    data = path.read_bytes()
    ways: dict[str, bytes] = {
        "cut": data[: rng.randrange(len(data))],
        "nested": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        "list": b"[" + data + b"]",
        "utf-16": data.decode().encode("utf-16"),
        "twice": data + data,
        "zeros": bytes(len(data)),
        "long number": data.replace(b": 3,", b": " + b"9" * 10_000 + b",", 1),
    }
    name = rng.choice(list(ways))
    path.write_bytes(ways[name])
    return (FREE if name == "long number" else REFUSE), name
