"""Text for measuring accuracy: a little prose and a little code."""

PROSE = """\
The ferry to the island leaves twice a day, at seven in the morning and at four in the afternoon, unless the wind comes
from the north. Then it does not leave at all, and whoever has business over there waits in the small cafe by the pier,
where the owner keeps a shelf of paperback novels for such days. Most of them are missing their last pages. She says
that the sea air loosens the glue, but the fishermen claim that she tears them out herself, so that people come back to
ask how the story ends.

In 1987, when the new harbour was built, the engineers measured the current for six months before they poured the
first block of concrete. They found that the water moves twice as fast at the surface as it does three metres below,
which is why small boats drift towards the rocks while the heavy ones hardly notice. The report had 240 pages and two
photographs. Nobody on the island had to read it: they had always tied their boats on the other side.
"""

CODE = '''\
def moving_average(values: list[float], window: int) -> list[float]:
    """The mean of every run of `window` consecutive values."""
    if window < 1:
        raise ValueError("window must be at least 1")
    result = []
    total = 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        if index >= window - 1:
            result.append(total / window)
    return result
'''

TEXT = f"{PROSE}\n{CODE}"
