"use strict";

// The page is complete without this script, which keeps it up to date by the events of the server. What it
// shows is always inserted as text.

const kept = { decisions: 256, denials: 64, clients: 64 };
const $ = (id) => document.getElementById(id);

let cursor = $("page").dataset.cursor;
let events = null;

// --- rows -----------------------------------------------------------------------------------------------

function time(el, value) {
	el.dateTime = value;
	const t = new Date(value);
	if (isNaN(t)) {
		return;
	}
	const clock = t.toLocaleTimeString([], { hour12: false });
	el.textContent = t.toDateString() === new Date().toDateString() ? clock : t.toLocaleDateString() + " " + clock;
}

// fill writes data into the elements of a row that have a field, but not into those of rows within it.
function fill(row, data) {
	for (const el of row.querySelectorAll("[data-field]")) {
		const value = data[el.dataset.field];
		if (value === undefined || el.closest("[data-key]") !== row) {
			continue;
		}
		if (el.localName === "time") {
			time(el, value);
		} else if (el.textContent !== value) {
			el.textContent = value;
		}
	}
	for (const name of ["verdict", "remedy"]) {
		if (data[name] !== undefined) {
			row.dataset[name] = data[name];
		}
	}
}

function rowOf(list, key) {
	return [...list.children].find((row) => row.dataset.key === key);
}

function newRow(template, key) {
	const row = $(template).content.firstElementChild.cloneNode(true);
	row.dataset.key = key;
	return row;
}

// put updates the row of a key, or puts a new one first, and drops what is more than most.
function put(list, template, key, data, most) {
	let row = rowOf(list, key);
	const isNew = !row;
	if (isNew) {
		row = newRow(template, key);
		list.prepend(row);
		if (list.children.length > most) {
			list.lastElementChild.remove();
		}
	}
	fill(row, data);
	return { row, isNew };
}

// replace makes the rows of a list those of data, in that order.
function replace(list, template, data, keyOf) {
	const rows = data.map((d) => {
		const row = rowOf(list, keyOf(d)) ?? newRow(template, keyOf(d));
		fill(row, d);
		return row;
	});
	if (rows.length !== list.children.length || rows.some((row, i) => row !== list.children[i])) {
		list.replaceChildren(...rows);
	}
}

// --- what an event brings -------------------------------------------------------------------------------

function showClient(client) {
	const { row } = put($("clients"), "client", client.client, client, kept.clients);
	row.querySelector("[data-count]").dataset.count = client.would_deny;
	const list = row.querySelector(".denials");
	const fresh = [];
	for (const denial of client.denials ?? []) {
		if (put(list, "denial", denial.key, denial, kept.denials).isNew) {
			fresh.push(client.client + " " + denial.name);
		}
	}
	return fresh;
}

function showDecisions(decisions) {
	const list = $("decisions");
	for (const decision of decisions) {
		const row = newRow("decision", decision.key);
		fill(row, decision);
		row.hidden = !wanted(row);
		list.prepend(row);
	}
	while (list.children.length > kept.decisions) {
		list.lastElementChild.remove();
	}
}

function show(update) {
	fill($("totals"), update.totals);
	const fresh = (update.clients ?? []).flatMap(showClient);
	fill(document.querySelector("[data-key=forgotten]"), update);
	if (update.gap) {
		$("decisions").replaceChildren();
	}
	showDecisions(update.decisions ?? []);
	replace($("tunnels"), "tunnel", update.tunnels.rows, (t) => t.key);
	fill(document.querySelector("[data-key=tunnels]"), update.tunnels);
	replace($("policies"), "policy", update.in_force.rows, (p) => p.name);
	fill(document.querySelector("[data-key=in-force]"), update.in_force);
	$("hash").textContent = update.in_force.hash;
	$("stale").hidden = !update.in_force.stale;
	tellOf(fresh);
}

// --- words to whoever does not see the page change ------------------------------------------------------

let told = 0;

function say(text) {
	$("said").textContent = text;
}

function tellOf(fresh) {
	if (fresh.length === 0 || Date.now() - told < 10000) {
		return;
	}
	told = Date.now();
	say("Denied: " + fresh[0] + (fresh.length > 1 ? " and " + (fresh.length - 1) + " more" : ""));
}

function state(name, text) {
	$("status").dataset.state = name;
	$("status").textContent = text;
}

// --- live or paused -------------------------------------------------------------------------------------

function watch() {
	events = new EventSource("events?since=" + encodeURIComponent(cursor));
	events.onopen = () => state("live", "Live");
	events.onmessage = (e) => {
		cursor = e.lastEventId;
		show(JSON.parse(e.data));
	};
	events.addEventListener("restart", () => location.reload());
	events.onerror = () => {
		if (events.readyState === EventSource.CLOSED) {
			state("lost", "Not live: the server refuses. Reload to try again");
		} else {
			state("lost", "Connection lost, trying again");
		}
	};
}

function pause() {
	if (events) {
		events.close();
		events = null;
		state("paused", "Paused");
	} else {
		state("still", "Connecting");
		watch();
	}
	$("pause").textContent = events ? "Pause" : "Go on";
}

// --- the filter of the decisions ------------------------------------------------------------------------

function wanted(row) {
	const text = $("with").value.trim().toLowerCase();
	return !($("only-denied").checked && row.dataset.verdict === "allow") && row.textContent.toLowerCase().includes(text);
}

function filter() {
	for (const row of $("decisions").children) {
		row.hidden = !wanted(row);
	}
}

// --- copying --------------------------------------------------------------------------------------------

const hintOf = (row) => row.querySelector("[data-field=hint]");

async function copy(button, hints) {
	const text = [...new Set(hints.map((el) => el.textContent))].join("\n"); // a name on two ports is one line
	try {
		await navigator.clipboard.writeText(text);
	} catch { // no permission, or the page did not come over HTTPS
		getSelection().selectAllChildren(hints[0]);
		say("Selected, press Ctrl C");
		return;
	}
	say("Copied: " + text);
	button.dataset.copied = "";
	setTimeout(() => delete button.dataset.copied, 1500);
}

$("clients").addEventListener("click", (e) => {
	const one = e.target.closest(".copy");
	const all = e.target.closest(".copy-all");
	if (one) {
		copy(one, [hintOf(one.closest("tr"))]);
	} else if (all) {
		copy(all, [...all.closest("details").querySelectorAll("tr[data-remedy=line]")].map(hintOf));
	}
});

$("filter").addEventListener("input", filter);
$("filter").addEventListener("submit", (e) => e.preventDefault());
$("pause").addEventListener("click", pause);

// --------------------------------------------------------------------------------------------------------

document.documentElement.classList.add("script");
for (const el of document.querySelectorAll("time")) {
	time(el, el.dateTime);
}
filter(); // a browser keeps what was typed over a reload
state("still", "Connecting");
watch();
