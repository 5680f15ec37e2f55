"""Requirements, extras, the wheel, and importing without extras."""

import re
import shutil
import tomllib
import zipfile
from importlib import metadata

import processes
import pytest
from processes import ROOT

import hypersphere_jax
from hypersphere_jax.utils.extras import EXTRAS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]


def requirements(name):
    """Return the lines of a requirements file, without the files that it includes."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {line for line in lines if line and not line.startswith("-r")}


def test_requirements_equal_the_extras():
    installed = {*PROJECT["dependencies"], *OPTIONAL["train"], *OPTIONAL["tfds"]}
    assert requirements("requirements.txt") == installed
    assert requirements("requirements-docs.txt") == set(OPTIONAL["docs"])
    developers = {*requirements("requirements-dev.txt"), "hypersphere-jax[train,tfds]"}
    assert developers == set(OPTIONAL["dev"])
    for requirement in installed | requirements("requirements-dev.txt"):
        assert re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+", requirement)  # a floor and a cap


def normalized(name):
    """Return the name of a distribution without its version, as package indexes compare names."""
    return re.split("[<>=]", name)[0].lower().replace("_", "-")


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_contain_the_modules_that_the_package_imports(extra):
    distributions = metadata.packages_distributions()
    for module in EXTRAS[extra]:
        names = {normalized(name) for name in distributions.get(module, [module])}
        assert names & {normalized(requirement) for requirement in OPTIONAL[extra]}, module


def test_versions_agree():
    assert PROJECT["version"] == hypersphere_jax.__version__
    assert f'version: "{PROJECT["version"]}"' in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
def test_wheel_contains_every_file_of_the_package(tmp_path):
    source = tmp_path / "source"
    package = shutil.copytree(
        ROOT / "hypersphere_jax",
        source / "hypersphere_jax",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path))
    done = processes.python("-m", "pip", "wheel", *options, str(source))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(path.relative_to(source)) for path in package.rglob("*.*")}
    assert names >= files and any(name.endswith("LICENSE") for name in names)


WITHOUT_EXTRAS = """
import sys
for name in {missing}:
    sys.modules[name] = None
import hypersphere_jax as hj
assert float(hj.align_loss([[1.0, 0.0]], [[0.0, 1.0]])) == 2
for name in ("load", "train", "PretrainConfig", "Recipe", "measure"):
    try:
        getattr(hj, name)
    except ImportError as error:
        assert name in str(error) and ".[train]" in str(error), error
    else:
        raise AssertionError(name)
sys.argv = ["hypersphere-jax", "pretrain"]
from hypersphere_jax.__main__ import main
assert main() == 2
"""


def test_losses_work_without_extras():
    """Everything else names the extra to install."""
    missing = {*EXTRAS["train"], *EXTRAS["tfds"]} - {"scipy"}  # a dependency of JAX
    done = processes.python("-c", WITHOUT_EXTRAS.format(missing=missing))
    assert done.returncode == 0, done.stderr
    assert ".[train]" in done.stderr and "Traceback" not in done.stderr
