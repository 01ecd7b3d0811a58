// As node's manual has it: the primary accepts, and hands connections to workers in turn.
const cluster = require('cluster'), net = require('net');
if (cluster.isPrimary) for (let n = 0; n < 3; n++) cluster.fork();
else net.createServer(data => data.once('data', got => data.end('pong ' + got))).listen(+process.argv[2], '0.0.0.0');
