"""Records: complete, free of contradictions, and true of the files at hand."""

from __future__ import annotations

import pytest
from tiny import FOLDER, needs_data

from unifews.datasets.load import load_dataset
from unifews.datasets.registry import RECORDS, find, record_of
from unifews.errors import UnknownNameError

HERE = sorted(path.stem for path in FOLDER.glob("*.npz"))


def test_no_name_means_two_datasets():
    names = [name for record in RECORDS.values() for name in (record.name, *record.aliases)]
    assert len(set(names)) == len(names)
    for name in names:
        assert find(name.upper().replace("-", "_")).name in RECORDS


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_is_whole(record):
    assert record.edges % 2 == 0, "edges are counted in both directions"
    assert record.title and record.convention and record.nodes > 0 and record.features > 0 and record.classes > 1
    assert (record.component == "largest") == (record.part_of is not None)
    assert record.split == "stored" or "stratified" in record.convention
    assert record.metric == ("auc" if record.name in {"minesweeper", "tolokers", "questions"} else "accuracy")


def test_the_paper_s_cora_is_the_largest_component():
    assert (record_of("cora-lcc").nodes, record_of("cora-lcc").edges) == (2_485, 12_623 - 2_485)
    assert record_of("cora-lcc").part_of == "cora" and "cora-lcc" in record_of("cora").notes[0]


@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if record.pyg])
def test_pyg_takes_what_the_record_calls_it_with(name, monkeypatch, tmp_path):
    import torch_geometric.datasets as datasets

    kind = getattr(datasets, RECORDS[name].pyg.kind)

    class AboutToDownload(Exception):
        pass

    def stop(self):
        raise AboutToDownload

    monkeypatch.setattr(kind, "download", stop)
    with pytest.raises(AboutToDownload):
        kind(str(tmp_path), **dict(RECORDS[name].pyg.arguments))


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no dataset named 'citeser'\. Did you mean 'citeseer'"):
        record_of("citeser")


@needs_data
@pytest.mark.parametrize("name", HERE)
def test_files_hold_what_their_records_say(name, monkeypatch, tmp_path):
    monkeypatch.setenv("UNIFEWS_DATA", str(FOLDER))
    dataset = load_dataset(name, source="local", cache=tmp_path)  # compares every count with the record
    record = RECORDS[name]
    assert dataset.name == name and dataset.about.metric == record.metric and dataset.about.component == record.component
    assert dataset.graph.is_symmetric and dataset.about.source == f"{name}.npz in UNIFEWS_DATA"
    assert len(dataset.splits) == (10 if "ten" in record.convention else 0 if "none" in record.convention else 1)
    if record.binary:
        assert set(dataset.x.data) == {1}
    train, val, test = dataset.split(seed=7)
    assert min(len(train), len(val), len(test)) > 0
