const code = location.hash.slice(1);
if (location.pathname.endsWith("/login") && code) {
  history.replaceState(null, "", location.pathname);
  await fetch("login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ code }),
  });
}
const session = await fetch("session");
document.body.append(await session.text());
