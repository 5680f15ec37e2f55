"""Convert formulas to MathML when the site is built, so that pages need no script.

Pages write `$…$` and `$$…$$`, docstrings write `.. math::` and :math:`…`.
"""

import html
import re

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.exceptions import PluginError

# Commands that latex2mathml does not support, with a replacement.
ALIASES = {r"\tfrac": r"\frac", r"\dfrac": r"\frac"}
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
DIRECTIVE = re.compile(r"^( *)\.\. math::(.*)$")


class Docstrings(Preprocessor):
    """Convert docstring syntax to Markdown: `.. math::` to `$$`, doctests to code blocks."""

    def run(self, lines: list[str]) -> list[str]:
        done: list[str] = []
        rest = list(lines)
        fenced = False
        while rest:
            line = rest.pop(0)
            fenced ^= line.lstrip().startswith("```")
            found = DIRECTIVE.match(line)
            if fenced:
                done.append(line)
            elif found:
                indent, formula = found.groups()
                block = [formula.strip()]
                while rest and (not rest[0].strip() or rest[0].startswith(f"{indent} ")):
                    block.append(rest.pop(0).strip())
                block = [part for part in block if part]
                done += ["", f"{indent}$$", *(indent + part for part in block), f"{indent}$$", ""]
            elif line.startswith(">>> "):
                block = [line]
                while rest and rest[0].strip():
                    block.append(rest.pop(0))
                done += ["", "```pycon", *block, "```", ""]
            else:
                done.append(re.sub(r":math:`([^`]*)`", r"$\1$", line))
        return done


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Docstrings(md), "docstrings", 26)


def mathml(latex: str, display: str) -> str:
    """Return the MathML of a formula; raise PluginError for an unsupported command."""
    latex = html.unescape(latex).strip()
    for name, other in ALIASES.items():
        latex = latex.replace(name, other)
    try:
        result = convert(latex, display=display)
    except Exception as error:  # latex2mathml raises many types
        raise PluginError(f"formula {latex!r}: {type(error).__name__} {error}") from error
    unknown = re.findall(r"<m[io]>(\\\w+)</m[io]>", result)
    if unknown:
        raise PluginError(f"formula {latex!r}: latex2mathml does not know {', '.join(unknown)}")
    return result


def on_config(config):
    config.markdown_extensions.append(Formulas())
    return config


def on_page_content(html, page, config, files):
    html = BLOCK.sub(lambda found: mathml(found[1], "block"), html)
    return INLINE.sub(lambda found: mathml(found[1], "inline"), html)
