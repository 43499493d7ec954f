"""Tables that a notebook makes, other than samples of an experiment: kept, or read from the reference."""

from . import parameters, provenance, store

SUFFIX = "_runs"  # of the folder, after the notebook's name
AS_DECLARED = "as declared"


class Tables:
    """The tables of one notebook: called with a name and a function, gives the table that the function makes.

    A table is kept in data/samples/NOTEBOOK_runs with the facts of machine, commit and changed parameters,
    until it is made again; `hakmem freeze NOTEBOOK_runs` makes it the reference, and says what was changed.
    reference: nothing is made; the tables are those of data/reference/NOTEBOOK_runs, which takes no compiler.
    quick: the tables are of the quick mode, and become the reference only by `freeze --quick`.
    """

    def __init__(self, notebook, reference=False, quick=False):
        self.name, self.reference, self.quick = notebook + SUFFIX, reference, quick
        self.folder = (store.REFERENCE if reference else store.SAMPLES) / self.name
        self._identity = None

    def __call__(self, name, make):
        """The DataFrame called `name`, its attrs included, as `make()` gives it or the reference holds it.

        For several names, a list of DataFrames; `make` then gives as many. Raises FileNotFoundError where the
        reference has no such table.
        """
        if isinstance(name, str):
            return self([name], lambda: [make()])[0]
        if self.reference:
            return [self._read(one) for one in name]
        made = list(make())
        for one, table in zip(name, made, strict=True):
            self._keep(one, table)
        return made

    def facts(self):
        """The facts of each machine and commit at which the reference was made; [] without reference."""
        paths = sorted(self.folder.glob("*.parquet")) if self.reference else []
        return [store.read_json(file) for file in dict.fromkeys(map(facts_file, paths)) if file.exists()]

    def _read(self, name):
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            raise FileNotFoundError(f"there is no reference in {path}: make it with reference = False")
        return store.read_table(path)

    def _keep(self, name, table):
        if self._identity is None:
            changed = [f"{name} = {x!r}" for name, x in parameters.CHANGED.items() if name != "quick"]
            facts = {"experiment": self.name.removesuffix(SUFFIX), "quick": self.quick}
            facts = provenance.collect(**facts, parameters=", ".join(changed) or AS_DECLARED)
            self._identity = provenance.save(self.folder, facts)
        table = table.drop(columns="extra", errors="ignore")  # a run's raw output, most of the bytes
        table.attrs["provenance"] = self._identity
        store.save_table(self.folder, f"{name}.parquet", table)


def facts_file(path):
    """Where the facts of a kept table lie: beside it."""
    identity = store.read_table(path, columns=[]).attrs.get("provenance")
    return path.with_name(f"provenance-{identity}.json")
