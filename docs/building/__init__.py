"""Builds the documentation site: `python -m docs.building`.

`pages` reads the code blocks of a page, `translations` knows which page says the same in another
language, `workplace` runs them, `pictures` runs pages and keeps
what they draw, `figures` draws the small pictures of the explanations (`lanes`), `reference`
writes down commands, JSON, files and functions from the code, and `links` looks at every link of
the built pages.
"""
