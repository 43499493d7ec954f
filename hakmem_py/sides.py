"""What takes part in a comparison: ACE off, on, any policy, any fixed arm, placebos, any settings, peers.

Also the measures by which they are compared, which runs and standings share.
"""

from dataclasses import dataclass, field

from . import native, peers
from .problems import ACE_CAPACITIES as ARMS

EQUIVALENT = 0.02  # share of the time: capacities, or sides, that differ by less are equally good
METRICS = {  # what `--metric` says -> column, and its name
    "cpu": ("cpu_ns_per_op", "cpu time"),
    "wall": ("wall_ns_per_op", "wall time"),
    "memory": ("peak_rss_bytes", "peak memory"),
}
SIDES = ("off", "on", "random", "fixed:64", "shuffled")


class AbError(RuntimeError):
    """The comparison cannot be made; one line that says what to change."""


@dataclass(frozen=True)
class Side:
    """One way of running: `env` on top of the program's own; `loop` that must fire: fast, slow or none."""

    label: str
    env: dict = field(default_factory=dict)
    loop: str | None = None
    allocator: str = "hakmem"  # or system, or a peer


def side(name, arm=None):
    """The Side of a name: PEER, off, on, shuffled, POLICY, slow:POLICY, fixed:BLOCKS, KNOB=VALUE[,...].

    PEER: system, mimalloc and so on in hakmem's place. off, hakmem: no learner. on: the default policy.
    shuffled: the same, told rewards of its first windows at random. POLICY: a row of the policy table, in the
    fast loop or (slow:) the slow one, the fast one standing still. fixed: one capacity, with ACE looking on.
    arm: number of the capacity that policies start from.
    """
    if "=" in name:
        return _set(name)
    on = {"HAKMEM_ACE_ENABLED": "1"} | ({} if arm is None else _arm(arm))
    kind, _, rest = name.partition(":")
    if kind == "fixed" and rest:
        return Side(name, on | _fixed(rest))
    if kind == "slow" and rest:
        return Side(
            name, on | _policy("HAKMEM_ACE_SLOW_POLICY", rest) | _policy("HAKMEM_ACE_POLICY", "fixed"), "slow"
        )
    special = {peer: Side(peer, allocator=peer) for peer in peers.FOREIGN} | {
        "off": Side(name),
        "hakmem": Side(name),
        "on": Side(name, on, "fast"),
        "shuffled": Side(name, on | {"HAKMEM_ACE_SHUFFLED": "1"}, "fast"),
    }
    return special.get(name) or Side(name, on | _policy("HAKMEM_ACE_POLICY", name), "fast")


def different(names, arm=None):
    """The Sides of these names, each once. Raises AbError where they are fewer than two."""
    found = [side(name, arm) for name in dict.fromkeys(names)]
    if len(found) < 2:
        raise AbError("an A/B needs two or more different sides; hakmem against itself is --sides off hakmem")
    return found


def learner(name, reference=False):
    """The Side called "on" or by the name of a policy. Raises AbError for every other name.

    reference: only "on" is allowed, as the reference holds no other runs; takes no compiler.
    """
    if reference and name != "on":
        raise AbError(f"the reference holds no runs of {name!r}, only of 'on': run it with reference = False")
    known = ("on",) if reference else ("on", *native.policy_names())
    if name not in known:
        raise AbError(f"{name!r} is no policy; allowed: {', '.join(known)}")
    return side(name)


def _set(name):
    """The Side of KNOB=VALUE[,...]. The library itself judges the value: the run fails if it refuses it."""
    pairs = [pair.partition("=") for pair in name.split(",")]
    known = {"profile", *native.knobs().index}
    env = {}
    for knob, _, value in pairs:
        knob = knob.lower().removeprefix("hakmem_")
        if knob not in known:
            raise AbError(f"side {name}: there is no knob {knob!r}; allowed: {', '.join(sorted(known))}")
        if f"HAKMEM_{knob.upper()}" in env:
            raise AbError(f"side {name}: {knob!r} occurs twice")
        env[f"HAKMEM_{knob.upper()}"] = value
    on = env.get("HAKMEM_ACE_ENABLED") == "1" or env.get("HAKMEM_PROFILE") == "learning"
    still = env.get("HAKMEM_ACE_POLICY") == "fixed" or env.get("HAKMEM_ACE_FROZEN") == "1"
    return Side(name, env, "fast" if on and not still else None)


def _arm(number):
    if number not in range(len(ARMS)):
        raise AbError(
            f"there is no arm {number}; allowed: 0 to {len(ARMS) - 1}, for {ARMS[0]} to {ARMS[-1]} blocks"
        )
    return {"HAKMEM_ACE_ARM": str(number), "HAKMEM_MAGAZINE_BLOCKS": str(ARMS[number])}


def _fixed(blocks):
    if blocks not in map(str, ARMS):
        raise AbError(f"fixed:{blocks} is no arm; allowed: {', '.join(f'fixed:{arm}' for arm in ARMS)}")
    return {"HAKMEM_ACE_POLICY": "fixed"} | _arm(ARMS.index(int(blocks)))


def _policy(variable, name):
    if name not in native.policy_names():
        known = ", ".join(native.policy_names())
        raise AbError(
            f"{name!r} is no side; allowed: {', '.join(peers.FOREIGN)}, hakmem, off, on, shuffled, "
            f"fixed:BLOCKS, slow:POLICY, KNOB=VALUE, {known}"
        )
    return {variable: name}
