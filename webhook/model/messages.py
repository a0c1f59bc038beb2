"""Quoting and shortening foreign text for messages and log lines."""

QUOTED_CHARACTERS = 40
"""Maximum characters of a user's value; the API server truncates warnings at 256 bytes."""

MESSAGE_CHARACTERS = 400
"""Maximum characters of a foreign message; a parser may quote all of its input."""

CALL_LAST = "call Holdfast last, or add the annotation with a MutatingAdmissionPolicy"
"""The advice if another webhook added something after Holdfast ran."""


def quote(text: str, characters: int = QUOTED_CHARACTERS) -> str:
    """Quote a user's text on one line, escaped to ASCII, and truncated if it is long."""
    escaped = ascii(text[:characters])[1:-1].replace('"', '\\"')
    if len(escaped) > characters:
        escaped = escaped[:characters]
    elif len(text) <= characters:
        return f'"{escaped}"'
    return f'"{escaped}…" ({len(text)} characters)'


def shorten(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """Cut the middle out of a foreign message: its start names the problem, its end the place."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}…{text[-half:]}"


def escape(text: str) -> str:
    """Escape unprintable characters, such as line breaks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def one_line(exc: Exception) -> str:
    """Format a foreign exception on one line; it may quote its input."""
    line = shorten(" ".join(str(exc).split()))
    return line if line.isprintable() else shorten(ascii(line)[1:-1])
