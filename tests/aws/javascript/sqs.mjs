// The main calls of SQS with the AWS SDK for JavaScript, which verifies the MD5 of what it sends and receives. Prints JSON.
import {
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  ListQueuesCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs"

const sqs = new SQSClient({ endpoint: process.env.AWS_ENDPOINT_URL, region: process.env.AWS_REGION })
const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "js", Attributes: { VisibilityTimeout: "60" } }))
const found = (await sqs.send(new GetQueueUrlCommand({ QueueName: "js" }))).QueueUrl
const sent = await sqs.send(
  new SendMessageCommand({
    QueueUrl,
    MessageBody: "grüße ✓",
    MessageAttributes: {
      text: { DataType: "String", StringValue: "ü" },
      number: { DataType: "Number.int", StringValue: "7" },
      bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
    },
    MessageSystemAttributes: { AWSTraceHeader: { DataType: "String", StringValue: "Root=1-5759e988-bd862e3fe1be46a994272793" } },
  }),
)
const receive = { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 10, MessageAttributeNames: ["All"] }
const [message] = (await sqs.send(new ReceiveMessageCommand({ ...receive, MessageSystemAttributeNames: ["All"] }))).Messages
await sqs.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 0 }))
const [again] = (await sqs.send(new ReceiveMessageCommand(receive))).Messages
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: again.ReceiptHandle }))
const Entries = [...Array(10).keys()].map((number) => ({ Id: `${number}`, MessageBody: `${number}` }))
const batch = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }))
const bodies = []
while (bodies.length < 10) {
  const messages = (await sqs.send(new ReceiveMessageCommand(receive))).Messages ?? []
  bodies.push(...messages.map((one) => one.Body))
  const handles = messages.map((one, index) => ({ Id: `${index}`, ReceiptHandle: one.ReceiptHandle }))
  if (handles.length) await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries: handles }))
}
const attributes = (await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }))).Attributes

const fifo = await sqs.send(
  new CreateQueueCommand({ QueueName: "js.fifo", Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" } }),
)
const numbers = []
for (const body of ["1", "1", "2"]) {
  const one = await sqs.send(new SendMessageCommand({ QueueUrl: fifo.QueueUrl, MessageBody: body, MessageGroupId: "g" }))
  numbers.push(one.SequenceNumber)
}
const ordered = (await sqs.send(new ReceiveMessageCommand({ ...receive, QueueUrl: fifo.QueueUrl }))).Messages
const queues = (await sqs.send(new ListQueuesCommand({ QueueNamePrefix: "js" }))).QueueUrls
await sqs.send(new DeleteQueueCommand({ QueueUrl }))
let missing = ""
try {
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "x" }))
} catch (error) {
  missing = error instanceof QueueDoesNotExist ? error.name : `${error}`
}
console.log(
  JSON.stringify({
    isFound: found === QueueUrl,
    isSame: sent.MessageId === message.MessageId && message.MessageId === again.MessageId,
    body: message.Body,
    attributes: Object.keys(message.MessageAttributes).sort(),
    bytes: [...message.MessageAttributes.bytes.BinaryValue],
    trace: message.Attributes.AWSTraceHeader,
    sent: batch.Successful.length,
    bodies: bodies.sort(),
    visibility: attributes.VisibilityTimeout,
    numbers,
    ordered: ordered.map((one) => one.Body),
    queues: queues.length,
    missing,
  }),
)
