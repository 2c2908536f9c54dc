"""Tables that are never cut: where the columns do not fit the terminal, every row becomes a few lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from exitpoll.cli.console import UNLIMITED, visible


@dataclass(frozen=True)
class Row:
    """The cells of a row, and how to show them."""

    cells: Sequence[str]
    bold: Collection[int]  # columns
    bar: str  # the first thing to leave out where there is no room
    ends_section: bool


@dataclass
class Grid:
    """A table for the terminal: names in the first column, numbers in the others.

    Args:
        title: What it shows.
        header: The names of the columns.
        numbered: Whether the first column holds numbers too.
        caption: What a reader should know.
    """

    title: str
    header: Sequence[str]
    numbered: bool = False
    caption: str = ""
    rows: list[Row] = field(default_factory=list)

    def add(self, *cells: str, bold: Collection[int] = (), bar: str = "") -> None:
        """Add a row.

        Args:
            cells: A cell for every column.
            bold: The columns whose cells are in bold.
            bar: A bar to show behind them.
        """
        self.rows.append(Row([visible(cell) for cell in cells], bold, bar, ends_section=False))

    def add_section(self) -> None:
        """Draw a line below the last row."""
        last = self.rows.pop()
        self.rows.append(Row(last.cells, last.bold, last.bar, ends_section=True))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Render the table in the best form that fits: with bars, without, or row by row."""
        unlimited = options.update(max_width=UNLIMITED)
        for with_bars in (True, False):
            table = self._table(with_bars=with_bars)
            if Measurement.get(console, unlimited, table).minimum <= options.max_width:
                yield table
                return
        yield from self._lines()

    def _table(self, *, with_bars: bool) -> Table:
        """Return it as a table: numbers are never cut, and names wrap between words if need be."""
        title, caption = visible(self.title), visible(self.caption)
        table = Table(
            title=Text(title), caption=Text(caption) if caption else None, title_justify="left", caption_justify="left"
        )
        names, *numbers = zip(self.header, *(row.cells for row in self.rows), strict=True)  # column by column
        words = [word for name in names for word in name.split()]
        table.add_column(Text(names[0]), justify="right" if self.numbered else "left", min_width=_widest(words))
        for column in numbers:
            table.add_column(Text(column[0]), justify="right", no_wrap=True, min_width=_widest(column))
        bars = with_bars and any(row.bar for row in self.rows)
        if bars:
            table.add_column("", no_wrap=True, min_width=_widest([row.bar for row in self.rows]))
        for row in self.rows:
            cells = [Text(cell, "bold" if number in row.bold else "") for number, cell in enumerate(row.cells)]
            table.add_row(*cells, *([row.bar] if bars else []), end_section=row.ends_section)
        return table

    def _lines(self) -> Iterator[RenderableType]:
        """Return it row by row: the first cell, and below it the others with the names of their columns."""
        yield Text(visible(self.title), "italic")
        for row in self.rows:
            yield Text(f"{self.header[0]} {row.cells[0]}".strip(), "bold")
            named = (f"{name} {cell}" for name, cell in zip(self.header[1:], row.cells[1:], strict=True) if cell)
            yield Padding(Text(", ".join(named)), (0, 0, 0, 2))
        if self.caption:
            yield Text(visible(self.caption), "dim")


def _widest(cells: Sequence[str]) -> int:
    """Return how many columns of the terminal the widest cell takes."""
    return max(map(cell_len, cells), default=0)
