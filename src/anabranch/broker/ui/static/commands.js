// Commands to type at a terminal, so that they reach the broker whose page this is: options where its ports are not the
// usual ones.

const USUAL = ["127.0.0.1", "localhost"];

const isUsual = (url, port) => {
  const found = new URL(url);
  return USUAL.includes(found.hostname) && found.port === port && !found.protocol.endsWith("s:");
};

/** One that asks the admin REST. */
export const toAdmin = (line) => (isUsual(location.origin, "8080") ? line : `${line} --admin-url ${location.origin}`);

/** One that sends or receives. `serviceUrl` is missing where the role may not know it. */
export const toService = (line, serviceUrl) =>
  !serviceUrl || isUsual(serviceUrl.replace("pulsar", "http"), "6650") ? line : `${line} --service-url ${serviceUrl}`;
