"""Requirements, extras, type hints of the public API, and Weights & Biases."""

import importlib
import inspect
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import processes
import pytest
import tiny_runs

import hypersphere_jax
from hypersphere_jax import __main__, data, moco, theory
from hypersphere_jax.configs import DataConfig, PretrainConfig, UserError, to_dict
from hypersphere_jax.training import metrics
from hypersphere_jax.training import train as training
from hypersphere_jax.utils.extras import EXTRAS, how_to_install

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def listed(name):
    """Requirement lines of a file, and the files that it takes in, without their reasons."""
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {line for line in lines if line and not line.startswith("-r")}


def test_requirements_are_those_of_the_extras():
    extras = PROJECT["optional-dependencies"]
    assert {re.split("[><=]", one)[0] for one in PROJECT["dependencies"]} == {"jax", "numpy"}
    installed = {*PROJECT["dependencies"], *extras["train"], *extras["tfds"]}
    assert listed("requirements.txt") == installed
    assert listed("requirements-docs.txt") == set(extras["docs"])
    assert listed("requirements-docs.txt") == set(extras["docs"])
    assert listed("requirements-dev.txt") | {"hypersphere-jax[train,tfds]"} == set(extras["dev"])
    for one in installed | listed("requirements-docs.txt"):  # a floor and a cap each
        assert re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+", one), one


def test_extras_name_what_the_package_imports():
    of_pip = {"orbax": "orbax-checkpoint", "sklearn": "scikit-learn", "PIL": "pillow"}
    of_pip |= {"tensorflow_datasets": "tensorflow-datasets", "yaml": "pyyaml"}
    of_pip |= {"docstring_parser": "docstring-parser"}
    for extra, modules in EXTRAS.items():
        named = {re.split("[><=]", one)[0] for one in PROJECT["optional-dependencies"][extra]}
        assert {of_pip.get(module, module) for module in modules} == named
    assert how_to_install("orbax.checkpoint") == 'pip install ".[train]"'
    assert how_to_install("my_module") is how_to_install(None) is None


def test_every_file_of_the_package_is_installed():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "hypersphere_jax"
    patterns = setuptools["package-data"]["hypersphere_jax"]
    installed = {file for pattern in patterns for file in package.glob(pattern)}
    others = {file for file in package.rglob("*.*") if file.suffix not in (".py", ".pyc")}
    assert others == installed


def test_version_licence_and_types():
    assert PROJECT["version"] == hypersphere_jax.__version__
    assert f'version: "{PROJECT["version"]}"' in (ROOT / "CITATION.cff").read_text()
    assert (ROOT / "hypersphere_jax/py.typed").exists() and PROJECT["license-files"] == ["LICENSE"]
    module, function = PROJECT["scripts"]["hypersphere-jax"].split(":")
    assert getattr(importlib.import_module(module), function) is __main__.main


def test_public_functions_have_complete_hints():
    names = [*hypersphere_jax.__all__, *hypersphere_jax._MODULES]
    public = {name: getattr(hypersphere_jax, name) for name in names}
    public |= {
        f"{module.__name__}.{name}": value
        for module in (moco, theory)
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    for name, value in public.items():
        for method, function in vars(value).items() if inspect.isclass(value) else ():
            if inspect.isfunction(function) and (
                not method.startswith("_") or method == "__call__"
            ):
                functions[f"{name}.{method}"] = function
    assert len(functions) > 40 and {"Encoder.__call__", "load", "align_loss"} <= functions.keys()
    for name, function in functions.items():
        signature = inspect.signature(function)
        hints = [one.annotation for one in signature.parameters.values() if one.name != "self"]
        assert inspect.Parameter.empty not in (*hints, signature.return_annotation), name


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
import hypersphere_jax as hj
hj.align_loss, hj.nt_xent_loss
for name in ("load", "train", "PretrainConfig", "Recipe", "measure"):
    try:
        getattr(hj, name)
    except ImportError as error:
        assert str(error).startswith(f"hypersphere_jax.{{name}} needs "), error
        assert str(error).endswith('pip install ".[train]"'), error
    else:
        raise AssertionError(name)
sys.argv = ["hypersphere-jax", "pretrain"]
from hypersphere_jax.__main__ import main
assert main() == 2
"""


def test_without_the_extra_of_training():
    """The losses are there; all else is one line that names the extra."""
    missing = {*EXTRAS["train"], *EXTRAS["tfds"]} - {"scipy"}  # which jax needs
    done = processes.python("-c", WITHOUT.format(missing=missing))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r'error: .* pip install "\.\[train\]"\n', done.stderr)


def test_without_the_extra_of_data_sets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets.core.read_only_builder", None)
    with pytest.raises(UserError, match=r'pip install "\.\[tfds\]"'):
        data.load(DataConfig("cifar10"))


class FakeWandb(ModuleType):
    """The part of wandb that is used; `runs` is what its server would have, by id."""

    Error = type("Error", (Exception,), {})

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.ended, self.fail = {}, [], None

    def Settings(self, **settings):
        return settings

    def init(self, id, resume, **options):
        if self.fail:
            raise self.Error(self.fail)
        assert resume == "allow" and options["reinit"] == "create_new"
        return FakeRun(self, self.runs.setdefault(id, {"options": options, "records": []}))


class FakeRun:
    def __init__(self, wandb, run):
        self.wandb, self.records = wandb, run["records"]
        self.step = self.records[-1]["step"] + 1 if self.records else 0

    def log(self, record, step):
        assert step >= self.step  # wandb warns and drops others
        self.records.append(record)

    def finish(self, exit_code):
        self.wandb.ended.append(exit_code)


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def test_wandb_has_the_metrics_of_a_run_that_was_continued(wandb, tmp_path):
    config = PretrainConfig(name="a", epochs=3, log_to="wandb")
    records = [{"step": step, "loss": 1 / step} for step in range(1, 7)]
    first = metrics.MetricLogger(tmp_path, config, 0)
    for record in records[:4]:
        first.log(record)
    first.close(failed=True)
    second = metrics.MetricLogger(tmp_path, config, 2)  # from the checkpoint of step 2
    for record in records[2:]:
        second.log(record)
    second.close()
    (run,) = wandb.runs.values()
    assert run["records"] == metrics.read_metrics(tmp_path) == records
    assert wandb.ended == [1, 0]
    options = run["options"]
    assert options["config"] == to_dict(config) and options["dir"] == tmp_path
    assert (options["name"], options["project"]) == ("a", "hypersphere-jax")
    metrics.MetricLogger(tmp_path / "b", config.replace(log_to="none"), 0).close()
    metrics.MetricLogger(tmp_path / "c", config, 0).close()
    assert len(wandb.runs) == 2  # a run of its own, and none of one that does not ask for it


@pytest.mark.slow
def test_a_run_logs_to_wandb(wandb, tmp_path):
    config = tiny_runs.short(tmp_path).replace(log_to="wandb")
    folder = training.train(config)
    (run,) = wandb.runs.values()
    assert run["records"] == metrics.read_metrics(folder) and wandb.ended == [0]


def test_wandb_missing_or_unable(wandb, monkeypatch, tmp_path):
    config = PretrainConfig(log_to="wandb")
    wandb.fail = "No key\n  configured."
    with pytest.raises(UserError, match=r"^log_to=wandb: No key configured; or set WANDB_MODE"):
        metrics.MetricLogger(tmp_path, config, 0)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"^log_to=wandb needs wandb.*\.\[wandb\]"):
        metrics.MetricLogger(tmp_path, config, 0)
