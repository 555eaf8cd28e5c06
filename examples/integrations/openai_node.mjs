// OpenAI's own JavaScript client: chat, a stream, a tool, a structured answer, and the Responses API.
//
// npm install openai
// DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… node openai_node.mjs

import OpenAI from "openai";

const model = process.env.DIRIGENT_MODEL ?? "dirigent-ultra";
const client = new OpenAI({ baseURL: process.env.DIRIGENT_BASE_URL, apiKey: process.env.DIRIGENT_API_KEY });
const hello = [{ role: "user", content: "Say hello." }];

const done = await client.chat.completions.create({ model, messages: hello });
console.log("chat:", done.choices[0].message.content);

let text = "";
for await (const piece of await client.chat.completions.create({ model, messages: hello, stream: true })) {
  text += piece.choices[0]?.delta?.content ?? "";
}
console.log("stream:", text);

const weather = ({ city }) => `4 degrees in ${city}`;
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "The weather in a city, now.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      parse: JSON.parse,
      function: weather,
    },
  },
];
const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: "How cold is it in Oslo?" }],
  tools,
});
console.log("tool:", await runner.finalContent());

const schema = {
  type: "object",
  properties: { name: { type: "string" }, country: { type: "string" } },
  required: ["name", "country"],
  additionalProperties: false,
};
const city = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "What is the capital of Norway?" }],
  response_format: { type: "json_schema", json_schema: { name: "city", schema, strict: true } },
});
console.log("structured:", JSON.parse(city.choices[0].message.content).name);

const response = await client.responses.create({ model, input: "Say hello." });
console.log("responses:", response.output_text);
