"""Encoders of sentences (Quick-Thought): data, network, training and evaluation.

The names in `_MODULES` are the interface to the rest of the package, which uses them where a config
`reads_text`. They are imported on first use.
"""

import importlib
from typing import Any

_MODULES = {
    **dict.fromkeys(("find_text", "load_text"), "text_data"),
    **dict.fromkeys(("PrepareTextConfig", "prepare_text"), "prepare"),
    **dict.fromkeys(
        (
            "ConsecutiveSampler",
            "check_vocabulary",
            "make_sentence_step",
            "resolve_text",
            "sentence_batches",
            "sentence_eval_batches",
        ),
        "sentence_training",
    ),
    **dict.fromkeys(("probe_tasks", "sentence_probe"), "quick_thought_probe"),
    "neighbour_inputs": "neighbours",
    **dict.fromkeys(("VOCABULARY", "write_vocabulary"), "corpus"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
