"""Blocks of a paged cache."""

from __future__ import annotations

import random

from coreai_onnx.huggingface.generation.block_pool import BlockPool

TEXT = list(range(100))


def test_blocks_are_taken_and_given_back() -> None:
    pool = BlockPool(4, 16, 16)
    assert [pool.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    first = pool.take(33)
    assert first is not None
    assert (len(set(first[0])), first[1], pool.available) == (3, 0, 1)
    assert pool.take(17) is None
    assert pool.available == 1
    pool.give_back(first[0])
    assert pool.available == 4


def test_whole_chunks_of_the_same_text_are_shared() -> None:
    pool = BlockPool(20, 16, 32)
    first = pool.take(70, TEXT[:70])
    assert first is not None
    for end in (32, 64, 70):
        pool.keep(TEXT[:70], end, first[0])
    second = pool.take(70, TEXT[:66])
    assert second is not None
    assert second[1] == 64
    assert second[0][:4] == first[0][:4]
    assert not set(second[0][4:]) & set(first[0])
    # The last token of a prompt is read in any case.
    third = pool.take(64, TEXT[:64])
    assert third is not None
    assert third[1] == 32
    # The second chunk follows another text here.
    fourth = pool.take(70, [7, *TEXT[1:70]])
    assert fourth is not None
    assert fourth[1] == 0
    for blocks, _ in (first, second, third, fourth):
        pool.give_back(blocks)
    assert pool.available == 20


def test_what_another_row_has_read_meanwhile_is_shared() -> None:
    pool = BlockPool(20, 16, 32)
    first, second = (pool.take(80, TEXT[:80]) for _ in range(2))
    assert first is not None
    assert second is not None
    own = list(second[0])
    assert pool.share(TEXT[:80], 0, second[0]) == 0
    for end in (32, 64, 80):
        pool.keep(TEXT[:80], end, first[0])
    assert pool.share(TEXT[:80], 0, second[0]) == 64
    assert second[0] == first[0][:4] + own[4:]
    assert pool.available == 20 - 6
    pool.give_back(first[0])
    assert pool.available == 20 - 5
    pool.give_back(second[0])
    assert pool.available == 20


def test_shared_blocks_are_evicted_when_nobody_uses_them() -> None:
    pool = BlockPool(4, 16, 16)
    first = pool.take(32, TEXT[:32])
    assert first is not None
    pool.keep(TEXT[:32], 16, first[0])
    pool.keep(TEXT[:32], 32, first[0])
    assert pool.take(48, [5]) is None, "both blocks are in use"
    pool.give_back(first[0])
    other = pool.take(48, [5])
    assert other is not None
    again = pool.take(16, TEXT[:17])
    assert again is not None
    # The end of a text is evicted before its beginning.
    assert (again[1], again[0]) == (16, first[0][:1])


def test_no_block_has_two_owners() -> None:
    draws = random.Random(0)
    pool, rows = BlockPool(24, 16, 32), []
    for _ in range(3000):
        if rows and draws.random() < 0.5:
            pool.give_back(rows.pop(draws.randrange(len(rows)))[0])
            continue
        prompt = [draws.randrange(2)] * draws.randrange(1, 100)
        most = len(prompt) + draws.randrange(1, 40)
        found = pool.take(most, prompt)
        if found is None:
            continue
        blocks, read = found
        assert len(blocks) == len(set(blocks)) == pool.blocks_for(most)
        assert read < len(prompt)
        own = set(blocks[read // 16 :])
        assert all(own.isdisjoint(other) for other, _ in rows)
        if read % 32 == 0:
            read = pool.share(prompt, read, blocks)
        for end in range(read + 32, len(prompt) + 1, 32):
            pool.keep(prompt, end, blocks)
        rows.append((blocks, prompt))
        assert pool.available == 24 - len({x for one, _ in rows for x in one})
    for blocks, _ in rows:
        pool.give_back(blocks)
    assert pool.available == 24
