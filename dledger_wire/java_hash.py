"""Java's String.hashCode.  ``frames/hash_columns.py`` has it for whole columns of strings.

Owns the hash that RocketMQ uses for tags (queue units) and keys (index entries): s[0] * 31^(n-1) + ... + s[n-1] over UTF-16 code units, in
32-bit signed arithmetic.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF
# Of unique ids, see ``frames.message_id``: with an IPv4 address 32 digits, with an IPv6 address 56; those of a client differ in the last.
_UNIQUE_ID_DIGITS, CHANGING_DIGITS = (32, 56), 12


def java_hash(text: str, *, behind: int = 0) -> int:
    """String.hashCode as a signed 32-bit number; ``behind``: that of what the text follows."""
    units = text.encode("utf-16-be", "surrogatepass") if not text.isascii() else None
    value = behind & _MASK
    if units is None:
        for byte in text.encode("ascii"):
            value = value * 31 + byte & _MASK
    else:
        for at in range(0, len(units), 2):
            value = value * 31 + (units[at] << 8 | units[at + 1]) & _MASK
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def cached_java_hash(text: str) -> int:
    """``java_hash`` for the few strings that come again and again: tags, topics."""
    return java_hash(text)


def key_hash(topic: str, key: str) -> int:
    """The index hash of a key: abs(hashCode of TOPIC#KEY), 0 where that overflows."""
    # A key as long as a unique id is taken for one: its first digits are the same for all messages of a client.
    same = len(key) - CHANGING_DIGITS if len(key) in _UNIQUE_ID_DIGITS else 0
    value = abs(java_hash(key[same:], behind=_hash_of_start(topic, key[:same])))
    return value if value <= 0x7FFFFFFF else 0


@lru_cache(maxsize=4096)
def _hash_of_start(topic: str, start: str) -> int:
    return java_hash(f"{topic}#{start}")


def key_words(keys: str) -> list[str]:
    """The keys in a KEYS property: its words, between single spaces as RocketMQ writes them; no other character separates."""
    return [word for word in keys.split(" ") if word]
