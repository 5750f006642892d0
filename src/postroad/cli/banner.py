"""What `postroad up` says once it is ready."""

from rich.console import Console
from rich.table import Table

from postroad import __version__
from postroad.supervisor import Running


def print_banner(running: Running) -> None:
    console = Console(highlight=False)
    grid = Table.grid(padding=(0, 3))
    grid.add_row("API", running.url)
    grid.add_row("Docs", f"{running.url}/docs")
    grid.add_row("Engine", running.engine)
    grid.add_row("Data", str(running.data_dir))
    if running.credentials:
        grid.add_row("Keys", str(running.data_dir / "credentials.toml"))
    console.print(f"\n[bold]Postroad {__version__} is ready.[/bold] Ctrl-C stops it.\n")
    console.print(grid, soft_wrap=True)
    if running.is_first_start:
        console.print("\nThis is the first start. Two keys were made; the file above has them too:")
        for name, key in running.credentials.items():
            console.print(f'  {name} = "{key}"', soft_wrap=True)
    console.print()
