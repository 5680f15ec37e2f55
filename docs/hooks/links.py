"""Links to files outside docs/, which the site has not, become their paths."""

import re

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?:\.\./)+([^)#]+)\)")


def on_page_markdown(markdown, page, config, files):
    return LINK.sub(lambda found: f"`{found[1]}`", markdown)
