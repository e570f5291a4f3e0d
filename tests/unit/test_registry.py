"""What other packages declare is found wherever they are installed, and looked for cheaply."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from importlib.machinery import PathFinder

import pytest

from bubblescope.model.registry import Registry

DECLARED = "[made.for.tests]\npath = pathlib:PurePath\n"
FOLDERS = ["mine-1.0.dist-info", "mine.egg-info", "EGG-INFO"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return the folder, or the archive, of a package that declares an object."""

    def make(folder, *, archive=False):
        place = tmp_path / ("mine-1.0.egg" if folder == "EGG-INFO" else "site")
        (place / folder).mkdir(parents=True)
        for name in ("METADATA", "PKG-INFO"):
            (place / folder / name).write_text("Name: mine\nVersion: 1.0\n")
        (place / folder / "entry_points.txt").write_text(DECLARED)
        if archive:
            packed = tmp_path / "mine.zip"
            with zipfile.ZipFile(packed, "w") as file:
                for path in (place / folder).iterdir():
                    file.write(path, f"{folder}/{path.name}")
            place = packed
        monkeypatch.syspath_prepend(place)

    return make


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_package_declares_is_found_where_installers_put_it(installed, folder):
    installed(folder)
    assert list(Registry("made.for.tests", {})) == ["path"]


def test_what_a_package_in_an_archive_declares_is_found(installed):
    installed("mine-1.0.dist-info", archive=True)
    assert list(Registry("made.for.tests", {})) == ["path"]


def test_what_an_importer_of_its_own_declares_is_found(monkeypatch):
    class Importer:
        def find_spec(self, *_):
            return None

        def find_distributions(self, *_):
            return iter([Package()])

    class Package(importlib.metadata.Distribution):
        def read_text(self, name):
            return {"METADATA": "Name: mine\n", "entry_points.txt": DECLARED}.get(name)

        def locate_file(self, path):
            return path

    monkeypatch.setattr(sys, "meta_path", [Importer(), *sys.meta_path])
    assert list(Registry("made.for.tests", {})) == ["path"]


def test_where_no_package_declares_anything_not_all_declarations_are_read(installed, monkeypatch):
    installed("mine-1.0.dist-info")
    monkeypatch.delattr(importlib.metadata, "entry_points")
    # A package that other tests import may have brought a finder of its own.
    finders = [one for one in sys.meta_path if not hasattr(one, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", [*finders, PathFinder])
    assert list(Registry("made.for.no.test", {"ours": object()})) == ["ours"]
    with pytest.raises(ImportError):
        list(Registry("made.for.tests", {}))
