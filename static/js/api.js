// JSON calls to our own server.

import { errorFrom, HttpError } from "./stream.js";
import { t } from "./i18n.js";

export async function call(method, path, body = null) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === null ? {} : { "Content-Type": "application/json" },
      body: body === null ? null : JSON.stringify(body),
      cache: "no-store",
    });
  } catch (fault) {
    if (!(fault instanceof TypeError)) throw fault;
    throw new HttpError({ status: 0, code: "offline", message: t("error.offline") });
  }
  if (!response.ok) throw await errorFrom(response);
  return response.status === 204 ? null : response.json();
}

// The sentence to show for an HttpError; anything else is a fault of ours and goes on.
export function sentence(error) {
  if (!(error instanceof HttpError)) throw error;
  const wait = error.retryAfter ? ` ${t("error.retry_after", { n: Math.ceil(error.retryAfter) })}` : "";
  return error.message + (error.message.includes(String(Math.ceil(error.retryAfter ?? 0))) ? "" : wait);
}
