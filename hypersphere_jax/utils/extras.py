"""Extras of the package and the modules that they install."""

# Extras of pyproject.toml and the modules that the package imports.
EXTRAS = {
    "train": (
        *(
            "flax",
            "optax",
            "orbax",
            "sklearn",
            "PIL",
            "tyro",
            "docstring_parser",
            "rich",
            "matplotlib",
            "tensorboardX",
        ),
        *("h5py", "scipy", "grain", "safetensors", "yaml", "jinja2"),
    ),
    "tfds": ("tensorflow_datasets", "importlib_resources"),
    "wandb": ("wandb",),
}


def how_to_install(module: str | None) -> str | None:
    """Return the command that installs a module, or None if no extra contains it.

    Args:
      module: dotted name, as in `ModuleNotFoundError.name`.
    """
    top = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return f'pip install ".[{extra}]"'
    return None
