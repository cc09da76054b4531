"""The key of a job."""

from __future__ import annotations

import base64
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = 32


def make_secret_key() -> bytes:
    """A new key, in base64 as it travels in HOROVOD_SECRET_KEY."""
    return base64.b64encode(secrets.token_bytes(DIGEST_LENGTH))


def compute_digest(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256."""
    return hmac.digest(key, message, "sha256")


def check_digest(digest: bytes, message: bytes, key: bytes) -> bool:
    """Whether `digest` belongs to `message`; takes equally long either way."""
    return hmac.compare_digest(digest, compute_digest(key, message))
