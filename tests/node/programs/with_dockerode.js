// A container by dockerode, with a limit to the silence that it bears: its id.

const Docker = require('dockerode');

const [url, config, silenceSeconds] = process.argv.slice(2);

async function main() {
  const client = new Docker({ socketPath: url.replace('unix://', ''), timeout: 1000 * Number(silenceSeconds) });
  const container = await client.createContainer(JSON.parse(config));
  await container.start();
  console.log(container.id);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
