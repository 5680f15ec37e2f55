"""What tests of evaluation share: a run to write into, and mistakes on the command line."""

import shutil
from pathlib import Path

import pytest

import run as command_line


@pytest.fixture(scope="session")
def run(image_run, tmp_path_factory) -> Path:
    """A copy of the finished run: what is computed of it stays in its folder for the next test."""
    return shutil.copytree(image_run, tmp_path_factory.mktemp("runs") / "images")


@pytest.fixture
def fails(capsys):
    """`fails(verb, *arguments)`: the one line on stderr of a command that a mistake ends."""

    def error(*arguments: str) -> str:
        capsys.readouterr()
        assert command_line.main(list(arguments)) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ")
        return line

    return error
