"""The console by keyboard alone, with a count of the steps that an operator takes."""

from playwright.sync_api import Locator, Page, expect

_TABS_MAX = 200
_ROWS_MAX = 60
_MARK = "data-wanted-by-the-test"
_IS_REACHED = f"document.activeElement?.closest('[{_MARK}]') != null"


class Keyboard:
    """Keys only. A step is a decision: a search, a shortcut, or a link, button or row that is chosen.

    Keys that lead to it (Tab, `j`) are part of the step; typing into a field that has the focus is none.
    """

    def __init__(self, page: Page) -> None:
        self.page, self.steps = page, 0

    def find(self, text: str) -> None:
        self.page.keyboard.press("/")
        self.page.keyboard.type(text)
        self._choose("Enter")

    def go(self, letter: str) -> None:
        self.page.keyboard.press("g")
        self._choose(letter)

    def press(self, key: str) -> None:
        self._choose(key)

    def activate(self, wanted: Locator) -> None:
        """Tab to it, and Enter."""
        expect(wanted).to_be_enabled()
        self._reach(wanted, "Tab", _TABS_MAX)
        self._choose("Enter")

    def open_row(self, wanted: Locator) -> None:
        """`j` to the row, and Enter."""
        expect(wanted).to_be_visible()
        self._reach(wanted, "j", _ROWS_MAX)
        self._choose("Enter")

    def field(self, wanted: Locator, text: str) -> None:
        """Tab to a field and type: no step."""
        self._reach(wanted, "Tab", _TABS_MAX)
        self.page.keyboard.type(text)

    def _reach(self, wanted: Locator, key: str, most: int) -> None:
        wanted.evaluate(f"(element) => element.setAttribute('{_MARK}', '')")
        try:
            for _ in range(most):
                if self.page.evaluate(_IS_REACHED):
                    return
                self.page.keyboard.press(key)
            raise AssertionError(f"{wanted} cannot be reached with {key}")
        finally:
            self.page.evaluate(f"document.querySelector('[{_MARK}]')?.removeAttribute('{_MARK}')")

    def _choose(self, key: str) -> None:
        self.steps += 1
        self.page.keyboard.press(key)

    def taken(self, most: int) -> None:
        """At most so many steps since the last check."""
        assert self.steps <= most, f"{self.steps} steps, {most} are allowed"
        self.steps = 0
