"""The dataset folder: what is saved is opened, damage is one sentence, nothing foreign is overwritten."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny import assert_same, tiny

from unifews.datasets import folder
from unifews.datasets.folder import open_dataset, save_dataset
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import FileFormatError, InputError, MissingFileError


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("splits", [0, 1, 10])
def test_what_is_saved_is_opened(tmp_path, sparse, splits):
    dataset = tiny(sparse=sparse, splits=splits)
    save_dataset(dataset, tmp_path / "a")
    opened = open_dataset(tmp_path / "a", verify=True)
    assert_same(opened, dataset)
    assert opened.name == dataset.name and opened.about == dataset.about
    assert [path.name for path in tmp_path.iterdir()] == ["a"]  # nothing temporary is left


def test_labels_in_several_columns(tmp_path):
    dataset = replace(tiny(), y=np.eye(24, 4, dtype=np.uint8))
    save_dataset(dataset, tmp_path / "a")
    assert open_dataset(tmp_path / "a").is_multilabel


def test_large_features_are_mapped_and_small_ones_read(tmp_path, monkeypatch):
    save_dataset(tiny(), tmp_path / "a")
    assert not isinstance(open_dataset(tmp_path / "a").x, np.memmap)
    monkeypatch.setattr(folder, "_MAP", 100)
    assert isinstance(open_dataset(tmp_path / "a").x, np.memmap)


def test_an_existing_dataset_is_replaced_only_on_request(tmp_path):
    save_dataset(tiny(), tmp_path / "a")
    with pytest.raises(InputError, match=r"already exists\. Pass overwrite=True"):
        save_dataset(tiny(seed=59), tmp_path / "a")
    save_dataset(tiny(seed=59), tmp_path / "a", overwrite=True)
    assert_same(open_dataset(tmp_path / "a"), tiny(seed=59))


def test_a_folder_that_is_no_dataset_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a unifews dataset, so it is not overwritten"):
        save_dataset(tiny(), tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "described", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save_dataset(tiny(), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def edit(path, **changes):
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | changes))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (lambda a: (a / "y.npy").unlink(), "is incomplete: it has no y.npy"),
        (lambda a: truncate(a / "x.npy"), "x.npy is truncated: 8 bytes are missing"),
        (lambda a: truncate(a / "graph" / "indices.npy"), "indices.npy is truncated"),
        (lambda a: np.save(a / "y.npy", np.zeros(7, int)), r"y.npy holds int64 \[7\], and dataset.json announces"),
        (lambda a: np.save(a / "y.npy", np.zeros(24, object)), "pickled Python objects"),
        (lambda a: (a / "dataset.json").write_text("{"), "is not a unifews dataset"),
        (lambda a: edit(a / "dataset.json", version=2), "has format version 2, and this release reads version 1"),
        (lambda a: edit(a / "dataset.json", num_nodes="many"), "dataset.json is damaged: it must hold"),
        (lambda a: edit(a / "dataset.json", num_edges=6), "they are not of one dataset"),
        (lambda a: edit(a / "dataset.json", num_features=6), "has 5 features, but dataset.json has 6"),
        (lambda a: edit(a / "dataset.json", num_classes=9), "has 3 classes, but dataset.json has 9"),
        (lambda a: edit(a / "dataset.json", arrays={"\0": {}}), "is missing among its arrays or not of"),
        (lambda a: np.save(a / "x.npy", np.load(a / "x.npy").astype(">f4")), "x.npy holds float32"),
        (lambda a: edit(a / "dataset.json", splits=2), "announces 2 splits, and 'test_1' is missing among its arrays"),
        (lambda a: edit(a / "dataset.json", about={"split": "by hand"}), "'by hand' is none of stratified, stored"),
        (lambda a: edit(a / "dataset.json", arrays={"../x": {}}), "'../x' is missing among its arrays or not"),
    ],
)
def test_damage_is_one_sentence(tmp_path, damage, sentence):
    save_dataset(tiny(), tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(FileFormatError, match=sentence):
        open_dataset(tmp_path / "a")


def test_a_changed_number_is_found_by_its_checksum(tmp_path, monkeypatch):
    save_dataset(tiny(), tmp_path / "a")
    x = np.load(tmp_path / "a" / "x.npy")
    x[3, 2] += 1
    np.save(tmp_path / "a" / "x.npy", x)
    for verify in (False, True):
        with pytest.raises(FileFormatError, match=r"x\.npy has changed since it was written"):
            open_dataset(tmp_path / "a", verify=verify)
    monkeypatch.setattr(folder, "_MAP", 0)  # every array is large: mapped, and read only on request
    open_dataset(tmp_path / "a")
    with pytest.raises(FileFormatError, match=r"x\.npy has changed since it was written"):
        open_dataset(tmp_path / "a", verify=True)


def test_no_folder(tmp_path):
    with pytest.raises(MissingFileError, match="there is no dataset folder"):
        open_dataset(tmp_path / "a")


def test_what_is_no_dataset_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"this is a Generated; make one with uf.Dataset\(name, graph, x, y\)"):
        save_dataset(powerlaw(50, 200, num_features=4, num_classes=2), tmp_path / "a")
