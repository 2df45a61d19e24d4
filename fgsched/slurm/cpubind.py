"""Read srun --cpu-bind. Maps and masks are obeyed; automatic bindings would collide with other jobs."""

from fgsched.slurm.step import StepRefused, TaskBinding

_AUTOMATIC = (
    *("none", "no", "rank", "rank_ldom", "sockets", "cores", "threads", "ldoms", "boards", "ldom", "core"),
    *("socket", "thread", "board"),
)
_VERBOSE, _QUIET = ("v", "verbose"), ("q", "quiet")
_MOST = 8192  # CPUs


def read_binding(text: str, tasks: int) -> TaskBinding:
    """Return the binding that an option asks for, such as 'verbose,map_cpu:0,2'. Raises StepRefused."""
    words, is_verbose = text.split(","), False
    while words and words[0].lower() in ("", *_VERBOSE, *_QUIET):
        is_verbose = words.pop(0).lower() in _VERBOSE
    kind, colon, first = words[0].partition(":") if words else ("", "", "")
    kind, rest, listed = kind.lower(), ",".join(words), [first, *words[1:]]
    if kind == "map_cpu" and colon:
        return TaskBinding(
            rest, _for_tasks([1 << cpu for cpu in _numbers(listed, 10, text)], tasks), is_verbose
        )
    if kind == "mask_cpu" and colon:
        return TaskBinding(rest, _for_tasks(_numbers(listed, 16, text), tasks), is_verbose)
    if kind in ("map_ldom", "mask_ldom") or all(word.lower() in _AUTOMATIC for word in words):
        return TaskBinding(rest, (), is_verbose)
    raise _refusal(text)


def _numbers(words: list[str], base: int, text: str) -> list[int]:
    """Return the numbers of a list; 2*3 means 2,2,2. Raises StepRefused."""
    limit = _MOST if base == 10 else 1 << _MOST
    found = []
    for word in words:
        one, star, count = word.partition("*")
        try:
            number, times = int(one, base), int(count) if star else 1
        except ValueError:
            raise _refusal(text) from None
        if not (0 <= number < limit and 0 < times <= _MOST and (number or base == 10)):
            raise _refusal(text)
        found += [number] * times
    return found


def _for_tasks(masks: list[int], tasks: int) -> tuple[int, ...]:
    """Return a mask for each task; a short list begins again."""
    return tuple(masks[task % len(masks)] for task in range(tasks))


def _refusal(text: str) -> StepRefused:
    return StepRefused(f"srun: error: Invalid --cpu-bind argument: {text}", 1)
