"""Output files that a user names: their endings, and files that are not overwritten."""

import dataclasses

import numpy as np
import pytest

from hypersphere_jax import cli
from hypersphere_jax.configs import (
    ExportConfig,
    FeaturesConfig,
    InspectConfig,
    MetricsConfig,
    ProbeConfig,
    UserError,
)
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.reporting import datasets
from hypersphere_jax.reporting.page import write_page

# Commands up to the option, and the endings that it takes.
OUTPUTS = (
    ("report a b --out", (".html",)),
    ("data inspect digits --out", (".json",)),
    ("data show digits --out", (".png",)),
    ("metrics x.npy --out", (".json",)),
    ("metrics x.npy --figure", (".png",)),
    ("probe x.npz --out", (".csv", ".json")),
    ("features a --out", (".npy", ".npz")),
    ("export a --out", (".npz", ".safetensors")),
)


@pytest.mark.parametrize("line, endings", OUTPUTS)
def test_no_file_of_the_users_is_written_over(line, endings, tmp_path, capsys, monkeypatch):
    """Such a file is refused before any work: the runs of these lines do not exist."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.eye(3))
    (tmp_path / "mine").write_text("of mine")
    for name in {".html", ".json", ".png", ".csv", ".npy", ".npz", ".safetensors", "", ".txt"}:
        (tmp_path / f"mine{name}").write_text("of mine")
        assert cli.main([*line.split(), f"mine{name}"]) == 2
        assert f"mine{name}" in capsys.readouterr().err
        assert (tmp_path / f"mine{name}").read_text() == "of mine"
    (tmp_path / f"folder{endings[0]}").mkdir()
    for place in (f"folder{endings[0]}", f"mine.txt/x{endings[0]}", f"x{endings[0]}/y"):
        assert cli.main([*line.split(), place]) == 2


def test_a_config_can_be_made_again_when_its_output_is_there(tmp_path):
    file = tmp_path / "x.npz"
    file.write_text("of mine")
    again = (FeaturesConfig("a", file), ExportConfig("a", file), ProbeConfig(("a",), out=file))
    for config in (*again, MetricsConfig("a.npy", out=file, figure=file)):
        assert dataclasses.replace(config) == config


def test_what_we_wrote_is_written_anew(tmp_path):
    page, table, picture = (tmp_path / f"x.{end}" for end in ("html", "json", "png"))
    write_page(page, "a", [])
    datasets.inspect(InspectConfig("digits"), sample=2, out=table)
    datasets.show(InspectConfig("digits", recipe="none"), count=1, out=picture)
    for path in (page, table, picture):
        check_output(path, path.suffix)
    with pytest.raises(UserError, match=r"x\.html"):
        page.write_text("<!doctype html>\n<title>hypersphere_jax</title>")
        check_output(page, ".html")
    check_output(tmp_path / "made" / "later" / "x.html", ".html")
    (tmp_path / "x.npy").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"x\.npy"):
        check_output(tmp_path / "x.npy", ".npy")
