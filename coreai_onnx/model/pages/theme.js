// The colors of the page: those that the reader prefers.
function themed(theme) {
  document.documentElement.dataset.theme = theme;
}
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
themed(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", (event) => themed(event.matches ? "dark" : "light"));
