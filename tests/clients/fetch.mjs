// Fetches one URL through undici's EnvHttpProxyAgent: prints the status, or the error's code and exits 1.
// usage: node fetch.mjs FOLDER_WITH_NODE_MODULES URL
import { createRequire } from "node:module";

const [folder, url] = process.argv.slice(2);
let undici;
try {
  undici = createRequire(`${folder}/`)("undici");
} catch (missing) {
  console.log(`missing: ${missing.code}`);
  process.exit(77);
}
try {
  const response = await undici.fetch(url, { dispatcher: new undici.EnvHttpProxyAgent() });
  await response.text();
  console.log(response.status);
  process.exit(response.status === 200 ? 0 : 1);
} catch (error) {
  console.log(`${error.name}: ${error.cause?.message ?? error.message}`);
  process.exit(1);
}
