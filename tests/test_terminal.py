"""Lines on the terminal."""

import numpy as np

from hypersphere_jax import plots, report, tables, terminal

NASTY = (
    "\x1b[2J\x9b",
    "new\nline\r\t",
    "\udcff\udcfe",
    "\u202e\u2029\0",
    "$_$",
    r"$\frac$日本",
    "<b>&",
    "y" * 5000,
)


def test_a_name_is_one_line_that_a_terminal_shows_as_it_is(capsys):
    for name, shown in zip(
        NASTY, (r"\x1b[2J\x9b", r"new\nline\r\t", r"\udcff\udcfe"), strict=False
    ):
        assert terminal.printable(name) == shown
    for name in NASTY:
        text = terminal.printable(name)
        assert text.isprintable() and len(text) <= 200 and text.encode()
        assert terminal.printable(text) == text
    assert terminal.printable("abcdefgh", 6) == "abc…gh" and terminal.printable("abc", 3) == "abc"
    terminal.say("\n".join(NASTY))
    tables.print_table(["a", "b"], [[name, 1] for name in NASTY], NASTY[0])
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable() and r"\udcff" in out
    assert max(map(len, out.splitlines())) < 1100


def test_names_in_pictures_are_drawn_as_they_are(tmp_path):
    """Warnings are errors here: of letters that no font has, too."""
    title, n = "".join(NASTY), len(NASTY)
    result = {"run": title, "n": 4, "d": 2, "classes": NASTY, "uniform_by_class": [-1.0] * n}
    result |= {"uniform_by_class_standard_error": [0.1] * n, "uniform_by_class_mean": -1.0}
    result |= {"uniform": -1.0, "uniform_optimum": -2.0}
    figure = plots.metrics_figure(result, tmp_path / "metrics.png")
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [terminal.printable(name, 14) for name in NASTY] and "$_$" in labels
    views = np.zeros((2, 2, 2, 2, 3))
    plots.view_sheet(title, NASTY[2:4], list(views[:, 0]), views, tmp_path / "views.png")
    runs = {"$_$": [{"step": 1, "loss": 1.0, "eval/$_$\udcff": 2.0}]}
    plots.training_curves(runs, tmp_path / "training.png")
    page = report.write_page(tmp_path / "page.html", title, [("text", name) for name in NASTY])
    assert r"\udcff" in page.read_text(encoding="utf-8")
