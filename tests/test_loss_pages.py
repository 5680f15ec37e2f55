"""The pages of docs/losses/: one for each loss, its formula, its picture, and what they state."""

import inspect
import re

from processes import ROOT

from docs.draw_losses import PICTURES
from hypersphere_jax import losses

FOLDER = ROOT / "docs" / "losses"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
LOSSES = [name for name in losses.__all__ if name.endswith("_loss")]


def squeezed(text):
    return re.sub(r"\s+", "", text)


def test_every_loss_has_a_page_with_its_formula_and_picture():
    for name in LOSSES:
        (page,) = (text for text in PAGES.values() if _is_of(text, name))
        found = re.search(
            r"\.\. math::(.*?)\n(?=\S)", inspect.getdoc(getattr(losses, name)), re.DOTALL
        )
        if name != "prior_matching_loss":  # whose formula is that of sliced_wasserstein_loss
            formulas = re.findall(r"^\$\$\n(.*?)^\$\$$", page, re.MULTILINE | re.DOTALL)
            assert squeezed(found[1]) in map(squeezed, formulas), name
        pictures = [file for file, picture in PICTURES.items() if name in picture.losses]
        assert any(f"](images/{file}.png)" in page for file in pictures), name


def _is_of(page, name):
    """Whether the page is the loss's own: named in its title, or in code before a formula."""
    title = page.splitlines()[0].removeprefix("# ")
    own = re.split(r", | and ", title)
    return name in own or (title == "Quick-Thought losses" and name.startswith("quick_thought"))


def test_the_script_draws_the_pictures_that_the_pages_show():
    shown = [file for page in PAGES.values() for file in re.findall(r"\(images/(\w+)\.png\)", page)]
    assert sorted(shown) == sorted(PICTURES)
    assert sorted(PICTURES) == sorted(path.stem for path in (FOLDER / "images").iterdir())
    assert {name for picture in PICTURES.values() for name in picture.losses} == set(LOSSES)
    assert max(path.stat().st_size for path in (FOLDER / "images").iterdir()) < 60_000


def test_the_overview_links_to_every_page():
    overview = (ROOT / "docs" / "losses.md").read_text()
    assert not [name for name in PAGES if f"(losses/{name}.md)" not in overview]
