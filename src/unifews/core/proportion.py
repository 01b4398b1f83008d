"""Whether the numbers in an edge list look like node numbers: a graph has at least some edges for its nodes."""

from __future__ import annotations

from unifews.errors import GraphError

_ALWAYS = 1_000_000  # nodes whose offsets cost nothing worth asking about
_MOST = 1 << 39  # nodes of any graph
_PER_EDGE = 64  # nodes for each edge of a list: far beyond graphs of which most nodes are isolated
_ADVICE = "Pass ids=True if these are identifiers"


def check_proportion(num_nodes: int, num_edges: int, where: str = "", advice: str = _ADVICE) -> None:
    """An error where the largest node number is out of proportion to the number of edges listed.

    For callers that were not given the number of nodes: every node takes 8 bytes in the graph, with or without edges, so one
    edge between identifiers near 3e9 would write 24 GB. `where` names the file, if there is one; `advice` says what to do
    with identifiers.
    """
    if num_nodes <= max(_ALWAYS, _PER_EDGE * num_edges):
        return
    listed = f"{f'{where} has ' if where else ''}{num_edges:,} edge{'' if num_edges == 1 else 's'}"
    otherwise = f", or num_nodes={num_nodes} if they are node numbers" if num_nodes <= _MOST else ""
    raise GraphError(
        f"{listed}, but node numbers up to {num_nodes - 1:,}: a graph numbers its nodes from 0 without gaps. "
        f"{advice}{otherwise}."
    )
