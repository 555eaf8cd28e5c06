// Anthropic's own JavaScript client, over `POST /v1/messages`: a message, a stream, a tool, and a tool runner.
//
// npm install @anthropic-ai/sdk
// DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… node anthropic_node.mjs

import Anthropic from "@anthropic-ai/sdk";

const model = process.env.DIRIGENT_MODEL ?? "dirigent-ultra";
// Anthropic's clients add /v1 to the base URL themselves.
const baseURL = process.env.DIRIGENT_BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: process.env.DIRIGENT_API_KEY });
const hello = { model, max_tokens: 500, messages: [{ role: "user", content: "Say hello." }] };

console.log("message:", (await client.messages.create(hello)).content[0].text);
console.log("stream:", await client.messages.stream(hello).finalText());

const weather = ({ city }) => `4 degrees in ${city}`;
const tools = [
  {
    name: "weather",
    description: "The weather in a city, now.",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];
const messages = [{ role: "user", content: "How cold is it in Oslo?" }];
// Several steps of a plan may each want a tool, so the program asks until an answer comes.
let message = await client.messages.create({ model, max_tokens: 500, messages, tools });
while (message.stop_reason === "tool_use") {
  const uses = message.content.filter((block) => block.type === "tool_use");
  const content = uses.map((use) => ({ type: "tool_result", tool_use_id: use.id, content: weather(use.input) }));
  messages.push({ role: "assistant", content: message.content }, { role: "user", content });
  message = await client.messages.create({ model, max_tokens: 500, messages, tools });
}
console.log("tool:", message.content[0].text);

const runnable = tools.map((tool) => ({ ...tool, type: "custom", run: weather, parse: (input) => input }));
const asked = [{ role: "user", content: "How cold is it in Oslo?" }];
const final = await client.beta.messages.toolRunner({ model, max_tokens: 500, messages: asked, tools: runnable });
console.log("tool runner:", final.content[0].text);
