#!/usr/bin/env python3
"""Guess the words in the names of Unicode's characters: many labels, most of them rare, nothing to download.

Python knows every character's name, such as LATIN SMALL LETTER E WITH ACUTE, and its properties: category,
direction, width, numeric value, decomposition, case. A small model sees the properties and the place in the
code table, and predicts which of about 10,000 words occur in the name. The names of a tenth of the characters
are held out. Names made by rule, CJK UNIFIED IDEOGRAPH-4E00 for instance, are left out: their last word is
the place.

The output layer has a fixed fan-in and is trained by the binary cross-entropy of all words, without ever
holding a logit for each; RigL or SET choose its connections along the way, unless told not to.
"""

import argparse
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

try:
    import torch
    from torch import Tensor, nn
    from torch_sparse_ops.losses import linear_binary_cross_entropy_with_logits, linear_topk
    from torch_sparse_ops.nn import FixedFanInLinear
    from torch_sparse_ops.sparsity import SET, RigL
except ImportError as error:
    sys.exit(
        f"character_names.py: {error}\n{sys.executable} needs torch-sparse-ops in its environment, for "
        "example: conda install -c conda-forge torch-sparse-ops"
    )

EMBEDDING, HIDDEN = 128, 256
LEARNING_RATE = 0.004
EXCHANGE_INTERVAL, EXCHANGE_SHARE = 50, 0.75  # steps from one to the next; of all steps, until RigL ends
HELD_OUT = 0.1
RANKS = (1, 3, 5)
NO_LABEL = -1
MADE_BY_RULE = re.compile(r"HANGUL SYLLABLE|-[0-9A-F]{3,}$|HIEROGLYPH [A-Z]+\d+")
RANGES = {"steps": (1, 9e9), "batch": (1, 1e5), "fan-in": (1, HIDDEN), "seed": (0, 9e9)}


class Characters(NamedTuple):
    """What is known of each character: numbers of properties and words, padded with ``NO_LABEL``."""

    code_points: Tensor
    properties: Tensor
    words: Tensor

    def take(self, rows: Tensor) -> "Characters":
        """Return some of them."""
        return Characters(*(tensor[rows] for tensor in self))


class Data(NamedTuple):
    """Characters to learn from and to be tested on, and what the numbers mean."""

    train: Characters
    held_out: Characters
    properties: list[str]
    words: list[str]


def describe(character: str) -> list[str]:
    """Return the properties of a character, its name aside."""
    place = ord(character)
    decomposition = unicodedata.decomposition(character).split()
    described = [f"part {part}" for part in decomposition]
    described += [f"place/{2**bits} {place >> bits}" for bits in (4, 6, 8, 12)]
    described += [f"place%{2**bits} {place % 2**bits}" for bits in (1, 4, 5)]
    described += [f"{change.__name__} {ord(other) - place}" for change in (str.lower, str.upper)
                  if len(other := change(character)) == 1 and other != character]  # fmt: skip
    for ask in ("category", "bidirectional", "combining", "east_asian_width", "mirrored"):
        described.append(f"{ask} {getattr(unicodedata, ask)(character)}")
    return [*described, f"numeric {unicodedata.numeric(character, None)}"]


def pad(rows: Iterable[list[int]]) -> Tensor:
    """Return lists of numbers as one tensor."""
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=NO_LABEL)


def number(rows: list[list[str]]) -> tuple[Tensor, list[str]]:
    """Return distinct texts as numbers, padded, and the texts by number; the frequent ones come first."""
    texts = [text for text, _ in Counter(text for row in rows for text in row).most_common()]
    numbers = {text: i for i, text in enumerate(texts)}
    return pad([numbers[text] for text in row] for row in rows), texts


def read_characters(seed: int) -> Data:
    """Read all characters with a name of their own."""
    named = {chr(i): unicodedata.name(chr(i), "") for i in range(sys.maxunicode + 1)}
    named = {c: name for c, name in named.items() if name and not MADE_BY_RULE.search(name)}
    properties, property_texts = number([describe(character) for character in named])
    words, word_texts = number([list(dict.fromkeys(name.split())) for name in named.values()])
    everything = Characters(torch.tensor([ord(c) for c in named]), properties, words)
    held_out = torch.rand(len(named), generator=torch.Generator().manual_seed(seed)) < HELD_OUT
    return Data(everything.take(~held_out), everything.take(held_out), property_texts, word_texts)


def draw_batches(characters: Characters, batch: int, seed: int) -> Iterator[Characters]:
    """Yield batches: all characters, shuffled, endlessly."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(characters.code_points), generator=generator)
        for rows in order.split(batch):
            yield characters.take(rows)


def count_words(data: Data) -> Tensor:
    """Return how many training characters have each word in their name."""
    words = data.train.words
    return torch.bincount(words[words != NO_LABEL], minlength=len(data.words))


class Guesser(nn.Module):
    """From properties to features of the output layer, and that layer."""

    def __init__(self, data: Data, fan_in: int) -> None:
        super().__init__()
        self.nothing = len(data.properties)
        self.embedding = nn.EmbeddingBag(self.nothing + 1, EMBEDDING, mode="sum", padding_idx=self.nothing)
        self.trunk = nn.Sequential(
            nn.LayerNorm(EMBEDDING), nn.Linear(EMBEDDING, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN)
        )
        self.output = FixedFanInLinear(HIDDEN, len(data.words), fan_in)
        # Start from how often each word occurs, so that training is spent on what the properties tell.
        share = (count_words(data) + 0.5) / (len(data.train.words) + 1)
        with torch.no_grad():
            self.output.get_parameter("bias").copy_(share.logit())

    def forward(self, characters: Characters) -> Tensor:
        """Return the features of the output layer, ``[batch, HIDDEN]``."""
        known = characters.properties
        features: Tensor = self.trunk(self.embedding(known.where(known >= 0, self.nothing)))
        return features


def train(guesser: Guesser, data: Data, options: argparse.Namespace) -> list[float]:
    """Train, tell about ten times, and return the losses."""
    optimiser = torch.optim.Adam(guesser.parameters(), lr=LEARNING_RATE, fused=True)
    exchange: RigL | SET | None = None
    if options.connections == "rigl":
        end = max(1, round(EXCHANGE_SHARE * options.steps))
        exchange = RigL(guesser, optimiser, interval=EXCHANGE_INTERVAL, end=end)
    elif options.connections == "set":
        exchange = SET(guesser, optimiser, interval=EXCHANGE_INTERVAL)
    losses: list[float] = []
    for batch in islice(draw_batches(data.train, options.batch, options.seed), options.steps):
        optimiser.zero_grad()
        total = linear_binary_cross_entropy_with_logits(
            guesser(batch), guesser.output, batch.words, reduction="sum"
        )
        loss = total / len(batch.words)
        loss.backward()
        if exchange is None or not exchange.step():
            optimiser.step()
        losses.append(loss.item())
        if len(losses) % max(1, options.steps // 10) == 0:
            print(f"step {len(losses)}, training loss {losses[-1]:.3f}", file=sys.stderr, flush=True)
    return losses


def is_right(guessed: Tensor, words: Tensor) -> Tensor:
    """Return which guesses ``[batch, count]`` are among the words of their character."""
    return (guessed[:, :, None] == words[:, None, :]).any(dim=2)


@torch.no_grad()
def evaluate(guesser: Guesser, data: Data) -> tuple[Tensor, list[str]]:
    """Return right guesses ``[held-out, largest rank]``, and some of them as lines."""
    characters = data.held_out
    guessed = linear_topk(guesser(characters), guesser.output, min(max(RANKS), len(data.words))).indices
    right, lines = is_right(guessed, characters.words), []
    for row in range(0, len(guessed), max(1, len(guessed) // 8)):
        character = chr(int(characters.code_points[row]))
        shown = character if character.isprintable() and not unicodedata.combining(character) else "?"
        guesses = (
            f"{data.words[g]}{'*' * r}"
            for g, r in zip(guessed[row].tolist(), right[row].tolist(), strict=True)
        )
        lines.append(f"  {shown}  {unicodedata.name(character)}: {' '.join(guesses)}")
    return right, lines


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=600, help="of training (default: 600)")
    add("--batch", type=int, default=256, help="characters in a step (default: 256)")
    add("--fan-in", type=int, default=32, help=f"connections of each word, at most {HIDDEN} (default: 32)")
    add("--connections", choices=("rigl", "set", "random"), default="rigl", help="chosen how (default: rigl)")
    add("--seed", type=int, default=0, help="of weights, connections, batches, held-out names (default: 0)")
    options = parser.parse_args()
    for option, (least, most) in RANGES.items():
        value = getattr(options, option.replace("-", "_"))
        if not least <= value <= most:
            parser.error(f"argument --{option}: received {value}, accepted is {least} to {most:g}")
    return options


def main() -> None:
    """Read, train, tell."""
    options = read_arguments()
    torch.manual_seed(options.seed)
    data = read_characters(options.seed)
    print(f"{len(data.train.words):,} characters to learn from, {len(data.words):,} words (Unicode "
          f"{unicodedata.unidata_version})", file=sys.stderr, flush=True)  # fmt: skip
    guesser, begin = Guesser(data, options.fan_in), time.perf_counter()
    losses = train(guesser, data, options)
    seconds = time.perf_counter() - begin
    right, lines = evaluate(guesser, data)
    most_frequent = count_words(data).topk(right.shape[1]).indices.expand_as(right)
    guessed_blindly = is_right(most_frequent, data.held_out.words)
    first, last = losses[0], losses[-1]
    print(f"{len(losses)} steps in {seconds:.1f} s; training loss {first:.3f} at first, {last:.3f} at last")
    print("of the names held out, words among the likeliest that are right (always the most frequent words):")
    for rank in RANKS:
        share, blindly = (found[:, :rank].double().mean().item() for found in (right, guessed_blindly))
        print(f"  {rank}: {share:.1%} ({blindly:.1%})")
    print("some of them, with * where it is right:", *lines, sep="\n")


if __name__ == "__main__":
    main()
