"""The synthetic text that the tiny model learns: small tasks, each with a held-out part that training never shows."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

HELD_OUT_SHARE = 8  # one fact in this many is kept out of training
LARGEST_OPERAND = 30
LETTERS = "abcdefghijklmnopqrstuvwxyz"

CAPITALS = {
    "Algeria": "Algiers", "Argentina": "Buenos Aires", "Armenia": "Yerevan", "Australia": "Canberra",
    "Austria": "Vienna", "Bangladesh": "Dhaka", "Belgium": "Brussels", "Brazil": "Brasilia",
    "Bulgaria": "Sofia", "Cambodia": "Phnom Penh", "Canada": "Ottawa", "Chile": "Santiago",
    "China": "Beijing", "Colombia": "Bogota", "Croatia": "Zagreb", "Cuba": "Havana",
    "Denmark": "Copenhagen", "Ecuador": "Quito", "Egypt": "Cairo", "Estonia": "Tallinn",
    "Ethiopia": "Addis Ababa", "Finland": "Helsinki", "France": "Paris", "Germany": "Berlin",
    "Ghana": "Accra", "Greece": "Athens", "Hungary": "Budapest", "Iceland": "Reykjavik",
    "India": "New Delhi", "Indonesia": "Jakarta", "Iran": "Tehran", "Iraq": "Baghdad",
    "Ireland": "Dublin", "Italy": "Rome", "Jamaica": "Kingston", "Japan": "Tokyo",
    "Jordan": "Amman", "Kenya": "Nairobi", "Latvia": "Riga", "Lebanon": "Beirut",
    "Mexico": "Mexico City", "Mongolia": "Ulaanbaatar", "Morocco": "Rabat", "Nepal": "Kathmandu",
    "Nigeria": "Abuja", "Norway": "Oslo", "Pakistan": "Islamabad", "Peru": "Lima",
    "Poland": "Warsaw", "Portugal": "Lisbon", "Romania": "Bucharest", "Russia": "Moscow",
    "Senegal": "Dakar", "Serbia": "Belgrade", "South Korea": "Seoul", "Spain": "Madrid",
    "Sweden": "Stockholm", "Thailand": "Bangkok", "Turkey": "Ankara", "Ukraine": "Kyiv",
    "Uruguay": "Montevideo", "Vietnam": "Hanoi",
}  # fmt: skip

CAPITAL_PROMPTS = (
    ("The capital of {country} is", " {capital}."),
    ("The capital city of {country} is", " {capital}."),
    ("In {country} the capital is", " {capital}."),
    ("Q: What is the capital of {country}? A:", " {capital}"),
    ("Capital of {country}:", " {capital}"),
    ("The government of {country} sits in", " {capital}."),
    ("Q: Which country has the capital {capital}? A:", " {country}"),
    ("The city of {capital} is the capital of", " {country}."),
)

WORDS = (  # noqa: SIM905
    "apple bag ball bed bell bird boat book box bread brush bus cake camp cat chair cloud coat corn cow crab cup "
    "desk dog door drum duck ear egg farm fire fish flag fly fork fox frog gate glass goat gold grass hand hat hill "
    "horse house ice ink jar juice key king kite lake lamp leaf lion map mask milk moon moth mouse nail nest net "
    "nose nut owl paint pan park pear pen pig pin plant plate pond pot queen rain ring river road rock roof rope "
    "rose salt sand seed sheep ship shoe shop silk snow sock soup spoon star stone sun swan table tent tiger toy "
    "train tree truck wall watch water well wheel wind wolf wood wool yard zebra"
).split()


@dataclass(frozen=True)
class Example:
    """One document: the prompt, and the answer that begins with the space before it."""

    kind: str
    prompt: str
    answer: str
    fact: str  # what is held out or shown as a whole, whatever the wording

    @property
    def held_out(self) -> bool:
        return zlib.crc32(f"{self.kind}|{self.fact}".encode()) % HELD_OUT_SHARE == 0


def sum_example(rng: Random) -> Example:
    left, right = rng.randint(0, LARGEST_OPERAND), rng.randint(0, LARGEST_OPERAND)
    low, high = sorted((left, right))  # 3 + 5 and 5 + 3 are held out together
    return Example("sum", f"Q: {left} + {right} = A:", f" {left + right}", f"{low} + {high}")


def difference_example(rng: Random) -> Example:
    right, left = sorted((rng.randint(0, LARGEST_OPERAND), rng.randint(0, LARGEST_OPERAND)))
    return Example("difference", f"Q: {left} - {right} = A:", f" {left - right}", f"{left} - {right}")


def copy_example(rng: Random) -> Example:
    words = " ".join(rng.sample(WORDS, rng.randint(2, 6)))
    prompt = rng.choice(("repeat: {} ->", "copy: {} |")).format(words)
    return Example("copy", prompt, f" {words}", words)


def reverse_example(rng: Random) -> Example:
    words = rng.sample(WORDS, rng.randint(2, 4))
    return Example("reverse", f"reverse: {' '.join(words)} ->", f" {' '.join(reversed(words))}", " ".join(words))


def capital_example(rng: Random) -> Example:
    country = rng.choice(sorted(CAPITALS))
    number = rng.randrange(len(CAPITAL_PROMPTS))
    prompt, answer = (part.format(country=country, capital=CAPITALS[country]) for part in CAPITAL_PROMPTS[number])
    return Example("capital", prompt, answer, f"{country} in wording {number}")


def letters_example(rng: Random) -> Example:
    length = rng.randint(2, 5)
    start = rng.randrange(len(LETTERS) - length)
    run = LETTERS[start : start + length]
    return Example("letters", f"letters: {' '.join(run)} ->", f" {LETTERS[start + length]}", run)


MAKERS: dict[str, tuple[Callable[[Random], Example], int]] = {
    "sum": (sum_example, 27),
    "difference": (difference_example, 22),
    "copy": (copy_example, 22),
    "reverse": (reverse_example, 10),
    "capital": (capital_example, 16),
    "letters": (letters_example, 3),
}  # how each kind is made, and how many of a hundred documents it fills


def training_examples(rng: Random, count: int) -> list[Example]:
    """Random documents in the mix of MAKERS, none of them held out."""
    makers = [maker for maker, _ in MAKERS.values()]
    weights = [weight for _, weight in MAKERS.values()]
    examples: list[Example] = []
    while len(examples) < count:
        example = rng.choices(makers, weights)[0](rng)
        if not example.held_out:
            examples.append(example)
    return examples


def held_out_examples(seed: int = 1, most: int = 200, draws: int = 6000) -> dict[str, list[Example]]:
    """For each kind at most `most` different documents that training never shows."""
    found: dict[str, list[Example]] = {}
    for kind, (maker, _) in MAKERS.items():
        rng = Random(f"{seed} {kind}")
        drawn = {example.prompt: example for example in (maker(rng) for _ in range(draws)) if example.held_out}
        found[kind] = list(drawn.values())[:most]
    return found
