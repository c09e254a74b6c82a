// A container's life with dockerode, which sends each call's options in the query and in a JSON body alike.
//
//   node dockerode.js UID SOCKET IMAGE NAME LABEL PROGRAM
//
// It becomes that user, and prints what it saw as JSON; NODE_PATH says where dockerode is.
"use strict";

const Docker = require("dockerode");

async function read(docker, stream) {
  const { PassThrough } = require("stream");
  const chunks = [];
  const out = new PassThrough();
  out.on("data", (chunk) => chunks.push(chunk));
  docker.modem.demuxStream(stream, out, out);
  await new Promise((resolve, reject) => stream.on("end", resolve).on("error", reject));
  return Buffer.concat(chunks).toString();
}

async function exec(docker, container, script) {
  const made = await container.exec({ Cmd: ["sh", "-c", script], AttachStdout: true, AttachStderr: true });
  const out = await read(docker, await made.start({ hijack: true, stdin: false }));
  return [(await made.inspect()).ExitCode, out];
}

async function answered(docker, container, line) {
  const made = await container.exec({ Cmd: ["cat"], AttachStdin: true, AttachStdout: true });
  const stream = await made.start({ hijack: true, stdin: true });
  const out = read(docker, stream);
  stream.end(line);
  return out;
}

async function resized(container) {
  const made = await container.exec({ Cmd: ["sleep", "100"], AttachStdout: true, Tty: true });
  const stream = await made.start({ hijack: true, stdin: true });
  await made.resize({ h: 20, w: 90 });
  stream.destroy();
  await container.resize({ h: 30, w: 100 });
  return true;
}

async function main(uid, socketPath, image, name, label, program) {
  process.setgroups([]);
  process.setgid(Number(uid));
  process.setuid(Number(uid));
  const docker = new Docker({ socketPath });
  const container = await docker.createContainer({
    name,
    Image: image,
    Cmd: ["sh", "-c", program],
    Env: ["WORD=from outside"],
    Labels: { [label.split("=")[0]]: label.split("=")[1] },
    Tty: true,
    HostConfig: { NetworkMode: "none", Memory: 64 * 1024 * 1024, CapDrop: [], Binds: [] },
  });
  const seen = {};
  try {
    await container.start();
    seen.up = await exec(docker, container, "until [ -e /tmp/up ]; do sleep 0.05; done; echo $WORD; exit 3");
    seen.answered = await answered(docker, container, "said\n");
    seen.resized = await resized(container);
    await container.rename({ name: `${name}-2` });
    seen.renamed = (await container.inspect()).Name === `/${name}-2`;
    await container.restart({ t: 0 });
    await container.kill({ signal: "SIGUSR1" });
    seen.running = (await container.inspect()).State.Running;
    const ended = container.wait({ condition: "not-running" });
    await exec(docker, container, "until [ -e /tmp/up ]; do sleep 0.05; done");
    await container.stop({ t: 20 });
    seen.code = (await ended).StatusCode;
    const listed = await docker.listContainers({ all: true, filters: { label: [label] } });
    seen.listed = listed.some((one) => one.Id === container.id);
    const volume = await docker.createVolume({ Name: name, Labels: { a: "b" }, brand: "new" });
    await volume.remove({ force: true });
  } finally {
    await container.remove({ force: true, v: true });
  }
  return seen;
}

main(...process.argv.slice(2)).then(
  (seen) => console.log(JSON.stringify(seen)),
  (error) => {
    console.error(error.message);
    process.exit(1);
  },
);
