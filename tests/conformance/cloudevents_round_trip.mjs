// Publishes events with the npm package `cloudevents` in binary, structured and batched mode, pulls them, and prints them as JSON.
// node cloudevents_round_trip.mjs <url> <key> <queue>
import { CloudEvent, HTTP, ValidationError } from "cloudevents";

const [url, key, queue] = process.argv.slice(2);
const authorization = `Bearer ${key}`;
const path = `${url}/v1/queues/${queue}`;
const post = async (where, { headers, body }) => {
  const answer = await fetch(where, { method: "POST", headers: { ...headers, authorization }, body });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer;
};
const common = { source: "https://shop.example/eu", type: "com.example.order.created", time: "2027-01-31T12:00:00.000Z" };
const event = (id, more = {}) => new CloudEvent({ ...common, id, subject: "orders/5", comexampleteam: "shop", data: { total: 12.5 }, ...more });

await post(`${path}/messages`, HTTP.binary(event("binary")));
await post(`${path}/messages`, HTTP.structured(event("structured", { dataschema: "https://schemas.example/order.json" })));
await post(`${path}/messages`, HTTP.binary(event("text", { datacontenttype: "text/plain", data: "grün" })));
const batch = [event("first"), event("second", { data: new Uint8Array([0, 255]), datacontenttype: "image/png" })];
const content = { "content-type": "application/cloudevents-batch+json" };
await post(`${path}/messages/batch`, { headers: content, body: JSON.stringify(batch) });

const headers = { accept: "application/cloudevents-batch+json", "content-type": "application/json" };
const answer = await post(`${path}/pull`, { headers, body: JSON.stringify({ maxMessages: 10 }) });
const parsed = HTTP.toEvent({ headers: Object.fromEntries(answer.headers), body: await answer.text() });
const found = [parsed].flat().map((one) => {
  try {
    one.validate();
  } catch (error) {
    if (error instanceof ValidationError) throw new Error(`${error.message} ${JSON.stringify(error.errors)}`);
    throw error;
  }
  const { data, data_base64, ...attributes } = one.toJSON();
  return { ...attributes, data: data instanceof Uint8Array ? [...data] : data, ...(data_base64 ? { data_base64 } : {}) };
});
process.stdout.write(JSON.stringify(found));
