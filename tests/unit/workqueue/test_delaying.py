from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.delaying import SLACK, DelayHeap

A = ("default", "a")


class Times(dict[ObjectKey, float]):
    def __init__(self, **at: float) -> None:
        super().__init__()
        self.heap = DelayHeap(self.get)
        for name, time in at.items():
            self.put(("default", name), time)

    def put(self, key: ObjectKey, at: float) -> None:
        self[key] = at
        self.heap.push(key, at)

    def drain(self, now: float) -> list[str]:
        names = []
        while (key := self.heap.pop(now)) is not None:
            del self[key]
            names.append(key[1])
        return names


def test_keys_are_popped_in_order_when_due() -> None:
    times = Times(c=30, a=10, b=20)
    assert times.heap.next_at() == 10
    assert times.drain(9.9) == []
    assert times.drain(20) == ["a", "b"]
    assert times.drain(99) == ["c"]
    assert times.heap.next_at() == float("inf")


def test_repeated_changes_do_not_grow_the_heap_without_bound() -> None:
    times = Times(b=10**9)
    for at in range(10_000):
        times.put(A, 10_000 - at)
    assert len(times.heap._entries) <= 2 * SLACK
    assert times.drain(10**9) == ["a", "b"]
