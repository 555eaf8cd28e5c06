"""Where the home folder is."""

from __future__ import annotations

from pathlib import Path

from dirigent.paths import home


def test_dirigent_home_wins() -> None:
    assert home({"DIRIGENT_HOME": "/srv/d", "XDG_CACHE_HOME": "/cache"}) == Path("/srv/d")


def test_a_tilde_in_dirigent_home_is_the_users_folder() -> None:
    assert home({"DIRIGENT_HOME": "~/d"}) == Path.home() / "d"


def test_xdg_cache_home_comes_next() -> None:
    assert home({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/dirigent")


def test_a_relative_xdg_cache_home_is_ignored() -> None:
    assert home({"XDG_CACHE_HOME": "cache"}) == Path.home() / ".cache" / "dirigent"


def test_without_either_it_is_in_the_users_cache() -> None:
    assert home({}) == Path.home() / ".cache" / "dirigent"
