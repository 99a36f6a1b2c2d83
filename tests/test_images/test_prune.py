"""The build cache does not grow without bound: each change of torch's pin would add 5 GB."""

from typing import Any

from hack.images.buildah import superseded


def image(identity: str, created: int, *names: str) -> dict[str, Any]:
    return {"id": identity, "created": created, "names": list(names) or None}


def test_the_newest_of_each_repository_stay() -> None:
    images = [
        image("old", 1, "p/server:a"),
        image("base", 0, "p/base:x"),
        image("new", 3, "p/server:c"),
        image("mid", 2, "p/server:b"),
        image("operator", 0, "p/operator:a"),
    ]
    assert superseded(images, keep=2) == ["old"]


def test_an_image_with_two_names_stays_while_one_of_them_is_new() -> None:
    images = [image("both", 1, "p/server:a", "p/other:a"), image("new", 2, "p/server:b")]
    assert superseded(images, keep=1) == []


def test_stages_of_both_images_stay_as_long_as_their_images() -> None:
    stages = [image(f"stage-{age}", 10 - age) for age in range(6)]
    assert superseded(stages, keep=2) == ["stage-4", "stage-5"]


def test_an_empty_storage_has_nothing_to_remove() -> None:
    assert superseded([], keep=1) == []
