// Asks the broker again and again for what is new, and says so when it cannot be reached.

import { headers } from "./access.js";

const EVERY_MS = 1000;
const RETRY_MAX_MS = 8000;
const PATIENCE_MS = 10000;

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function answer(response) {
  const body = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, body?.reason ?? `${response.status} ${response.statusText}`);
  return body;
}

/**
 * One request; Refused with the broker's reason, or TypeError when there is no broker. One that another broker answers is
 * passed on to it: the page may not follow a redirect to another origin.
 */
export async function ask(method, path, body) {
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  return answer(
    await fetch(path, {
      method,
      signal: AbortSignal.timeout(60000),
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: { ...headers(), ...json, "Anabranch-Pass-On": "true" },
    }),
  );
}

/**
 * Calls `path()` for a URL about once a second and hands its answer to `take`. Hidden pages rest. `state` hears
 * "live", "lost" with the time of the next try, or "refused" with the reason, which ends it.
 */
export class Feed {
  constructor(path, take, state) {
    this.path = path;
    this.take = take;
    this.state = state;
    this.failures = 0;
    this.stopped = false;
    this.wake = () => document.hidden || this.soon(0);
    document.addEventListener("visibilitychange", this.wake);
    this.soon(0);
  }

  soon(ms) {
    if (this.stopped) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.turn(), ms);
  }

  async turn() {
    if (this.stopped || this.asking || document.hidden) return;
    this.asking = true;
    try {
      const response = await fetch(this.path(), {
        signal: AbortSignal.timeout(PATIENCE_MS),
        cache: "no-store",
        headers: headers(),
      });
      const found = await answer(response);
      if (this.stopped) return;
      this.failures = 0;
      this.take(found);
      this.state("live");
      this.soon(EVERY_MS);
    } catch (error) {
      if (this.stopped) return;
      if (error instanceof Refused && error.status < 500) {
        this.state("refused", error);
        this.stop();
        return;
      }
      this.failures += 1;
      const pause = Math.min(RETRY_MAX_MS, EVERY_MS * 2 ** (this.failures - 1));
      this.state("lost", { at: Date.now() + pause, error });
      this.soon(pause);
    } finally {
      this.asking = false;
    }
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.wake);
  }
}
