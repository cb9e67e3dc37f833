"""Random changes of known inputs, for the parsers' tests."""


def mutate(rng, seeds, spice, longest):
    """One seed, with one to four places replaced by a spice or by a piece of a seed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        data[at : at + rng.randint(0, 3)] = rng.choice(
            [rng.choice(spice), rng.choice(seeds)[: rng.randint(0, longest)]]
        )
    return bytes(data)
