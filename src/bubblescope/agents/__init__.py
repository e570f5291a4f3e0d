"""Answers for programs that ask in place of people: the tools of `bubblescope mcp`, and their skill."""
