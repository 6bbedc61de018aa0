"""Answers as a coding model gives them, for the pictures and the tests of the playground."""

ORBIT = """```html
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Orbit</title>
<style>
  html, body { margin: 0; height: 100%; background: #0b0d17; overflow: hidden; }
  canvas { display: block; width: 100%; height: 100%; }
  p { position: fixed; left: 16px; bottom: 12px; margin: 0; color: #8c93b8; font: 13px system-ui, sans-serif; }
</style>
</head>
<body>
<canvas id="sky"></canvas>
<p>Seven planets, one sun</p>
<script>
const sky = document.getElementById("sky");
const pen = sky.getContext("2d");
const colours = ["#ffd166", "#ef476f", "#06d6a0", "#4cc9f0", "#b388ff", "#ff9f1c", "#e0e6ff"];
const planets = colours.map((colour, i) => ({
  colour,
  radius: 46 + i * 27,
  size: 3 + ((i * 5) % 7),
  speed: 0.021 / Math.sqrt(1 + i * 1.4),
  angle: i * 2.4,
}));

function resize() {
  sky.width = innerWidth * devicePixelRatio;
  sky.height = innerHeight * devicePixelRatio;
  pen.fillStyle = "#0b0d17";
  pen.fillRect(0, 0, sky.width, sky.height);
}

function draw() {
  const [x, y] = [sky.width / 2, sky.height / 2];
  const scale = Math.min(sky.width, sky.height) / 480;
  // A veil over the last picture leaves a trail behind every planet.
  pen.fillStyle = "rgba(11, 13, 23, 0.045)";
  pen.fillRect(0, 0, sky.width, sky.height);

  const glow = pen.createRadialGradient(x, y, 0, x, y, 34 * scale);
  glow.addColorStop(0, "#fff6d6");
  glow.addColorStop(0.35, "#ffd166");
  glow.addColorStop(1, "rgba(255, 209, 102, 0)");
  pen.fillStyle = glow;
  pen.beginPath();
  pen.arc(x, y, 34 * scale, 0, Math.PI * 2);
  pen.fill();

  for (const planet of planets) {
    planet.angle += planet.speed;
    pen.fillStyle = planet.colour;
    pen.beginPath();
    pen.arc(
      x + Math.cos(planet.angle) * planet.radius * scale,
      y + Math.sin(planet.angle) * planet.radius * scale * 0.86,
      planet.size * scale,
      0,
      Math.PI * 2,
    );
    pen.fill();
  }
  requestAnimationFrame(draw);
}

addEventListener("resize", resize);
resize();
draw();
</script>
</body>
</html>
```
"""

CACHE = '''An ordered dictionary already knows the order of its keys, so both operations are O(1): moving a key \
to the end marks it as used, and the first key is the one to forget.

```python
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Keeps the `capacity` entries that were used last."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)  # used just now
        return self._entries[key]

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)  # the oldest

    def __len__(self) -> int:
        return len(self._entries)
```

The tests cover what is easy to get wrong:

```python
import pytest


def test_the_oldest_entry_is_forgotten():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")  # now "b" is the oldest
    cache.put("c", 3)
    assert cache.get("b") is None
    assert cache.get("a") == 1


def test_putting_again_counts_as_use():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 10)
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b")) == (10, None)


def test_no_room_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        LRUCache(0)
```

Without the standard library's help, a dictionary finds the entries and a doubly linked list keeps their order. A \
sentinel at both ends saves every special case:

```python
class Node:
    __slots__ = ("key", "value", "before", "after")

    def __init__(self, key=None, value=None):
        self.key, self.value = key, value
        self.before = self.after = self


class LinkedLRUCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.nodes = {}
        self.ends = Node()  # .after is the oldest, .before the newest

    def get(self, key):
        node = self.nodes.get(key)
        if node is None:
            return None
        self._unlink(node)
        self._link(node)
        return node.value

    def put(self, key, value):
        if key in self.nodes:
            self._unlink(self.nodes[key])
        node = self.nodes[key] = Node(key, value)
        self._link(node)
        if len(self.nodes) > self.capacity:
            oldest = self.ends.after
            self._unlink(oldest)
            del self.nodes[oldest.key]

    def _link(self, node):
        last = self.ends.before
        last.after = self.ends.before = node
        node.before, node.after = last, self.ends

    def _unlink(self, node):
        node.before.after, node.after.before = node.after, node.before
```

### Design

- **`get` returns `None`** for a missing key, so a stored `None` cannot be told apart. Raise `KeyError` if that matters.
- It is *not* safe for several threads; wrap both methods in a lock if you need that.
- `len(cache)` never exceeds the capacity.
'''
