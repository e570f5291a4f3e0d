"""Answers for programs that ask in place of people: the tools of `bubblescope mcp`, and how to use them."""
