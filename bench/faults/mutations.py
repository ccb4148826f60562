"""Every mutation of a model folder, and the folders that it is tried on."""

from faults import config_mutations, file_mutations, tensor_mutations
from faults.mutation import Mutation

MUTATIONS: dict[Mutation, tuple[str, ...]] = {
    config_mutations.config_value: ("llama", "gpt2", "bert", "qwen3", "sharded"),
    config_mutations.config_size: ("llama", "gpt2", "bert", "qwen3"),
    config_mutations.config_key: ("llama", "gpt2", "bert", "qwen3"),
    config_mutations.config_harmless: ("llama", "gpt2", "bert"),
    config_mutations.config_special: ("llama", "gpt2", "qwen3"),
    config_mutations.config_text: ("llama", "sharded"),
    tensor_mutations.tensor_dropped: ("llama", "gpt2", "bert", "qwen3", "sharded"),
    tensor_mutations.tensor_renamed: ("llama", "gpt2", "bert", "sharded"),
    tensor_mutations.tensor_reshaped: ("llama", "gpt2", "bert", "qwen3", "sharded"),
    tensor_mutations.tensor_retyped: ("llama", "gpt2", "bert", "qwen3"),
    tensor_mutations.more_layers: ("llama", "gpt2", "bert", "qwen3"),
    tensor_mutations.numbers: ("llama", "gpt2", "bert", "sharded"),
    tensor_mutations.header_bit: ("llama", "gpt2", "bert", "sharded"),
    tensor_mutations.any_bit: ("llama", "gpt2", "bert", "sharded"),
    tensor_mutations.cut_file: ("llama", "gpt2", "sharded"),
    file_mutations.not_a_file: ("llama", "gpt2", "sharded"),
    file_mutations.linked: ("llama", "gpt2", "sharded"),
    file_mutations.index_entry: ("sharded",),
    file_mutations.stray_files: ("llama", "gpt2"),
    file_mutations.pickled: ("llama",),
}
