"""Check images against the site's list by their complete names, and find the images' origins."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import Body, objects, section, strings, text
from gpushared.gate.api.site import SitePolicy

_DIGEST = re.compile(r"(.+@)?sha256:[0-9a-f]{64}")
_ID = re.compile(r"(sha256:)?[0-9a-f]{4,64}")
_TAG = re.compile(r"(?P<name>.+?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?")
ALL = "*"


def check_image(reference: str, policy: SitePolicy) -> None:
    """Raise ``PermissionRefused`` for an image that the site does not allow."""
    if policy.image_digest and not _DIGEST.fullmatch(reference):
        raise PermissionRefused(
            f"the image {shown(reference)} is named without its digest",
            hint="write NAME@sha256:..., as `docker images --digests` shows it",
        )
    if ALL in policy.images:
        return
    if _ID.fullmatch(reference):
        raise PermissionRefused(
            f"{shown(reference)} may be the id of any image", hint="write the image's name"
        )
    name, tagged = full_names(reference)
    if not any(fnmatchcase(name, one) or fnmatchcase(tagged, one) for one in policy.images):
        raise PermissionRefused(
            f"the image {shown(name)} is not allowed for you",
            hint=f"images here come from: {', '.join(policy.images) or 'nowhere'}",
        )


def pulled_from(found: Body) -> frozenset[str] | None:
    """Return the repositories from which an image came, by its inspect; None if the engine cannot tell.

    Engines that keep images in containerd give a digest to every tag, also of a built or loaded image; there
    an image's id is its digest. From version 29 on they keep each image's origin as ``Identity``.
    """
    if found.get("Identity"):
        pulls = objects(section(found, "Identity"), "Pull")
        return frozenset(full_names(text(pull, "Repository"))[0] for pull in pulls)
    named = [digest.partition("@") for digest in strings(found, "RepoDigests")]
    if any(digest == found.get("Id") for _, _, digest in named):
        return None
    return frozenset(full_names(name)[0] for name, _, _ in named)


def full_names(reference: str) -> tuple[str, str]:
    """Return the name of a repository as the engine completes it, and the same with its tag.

    https://pkg.go.dev/github.com/distribution/reference#ParseNormalizedNamed has the rules.
    """
    plain = reference.partition("@")[0]
    match = _TAG.fullmatch(plain)
    name = match["name"] if match else plain
    tag = (match["tag"] if match else "") or "latest"
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        first, rest = "docker.io", name
    if first in {"docker.io", "index.docker.io"}:
        first, rest = "docker.io", rest if "/" in rest else f"library/{rest}"
    return f"{first}/{rest}", f"{first}/{rest}:{tag}"
