"""Encoders of sentences (Quick-Thought): data, network, training and evaluation.

`_NAMES` is the interface to the rest of the package, which uses it where a config `reads_text`. A
module is imported when one of its names is first used.
"""

import importlib
from typing import Any

_NAMES = {
    "corpus": ("VOCABULARY", "write_vocabulary"),
    "labelled": ("probe_tasks", "sentence_probe"),
    "neighbours": ("neighbour_inputs",),
    "prepare": ("PrepareTextConfig", "find_text", "load_text", "prepare_text"),
    "sentence_training": (
        "ConsecutiveSampler",
        "check_vocabulary",
        "make_sentence_step",
        "resolve_text",
        "sentence_batches",
        "sentence_eval_batches",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
