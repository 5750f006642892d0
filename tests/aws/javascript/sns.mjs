// Topic to queue with the AWS SDK for JavaScript. Prints the envelope, and what a published validator says about it.
import { CreateTopicCommand, PublishBatchCommand, PublishCommand, SNSClient, SubscribeCommand } from "@aws-sdk/client-sns"
import { CreateQueueCommand, GetQueueAttributesCommand, ReceiveMessageCommand, SQSClient } from "@aws-sdk/client-sqs"
import { readFileSync } from "node:fs"
import https from "node:https"
import { PassThrough } from "node:stream"
import MessageValidator from "sns-validator"

const options = { endpoint: process.env.AWS_ENDPOINT_URL, region: process.env.AWS_REGION }
const sns = new SNSClient(options)
const sqs = new SQSClient(options)
const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "js" }))
const found = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["QueueArn"] }))

// The validator gets certificates by https only: an operator has TLS, this test hands over the certificate.
const certificate = readFileSync(process.env.SNS_CERTIFICATE)
https.get = (url, done) => {
  const response = new PassThrough()
  response.statusCode = 200
  setImmediate(() => {
    done(response)
    response.end(certificate)
  })
  return { on: () => undefined }
}
const host = new URL(process.env.SNS_HOST).hostname
const validator = new MessageValidator(new RegExp(`^${host.replaceAll(".", "\\.")}$`))
const validate = (message) =>
  new Promise((resolve) => validator.validate(message, (error) => resolve(error ? error.message : "valid")))

const results = {}
for (const version of ["1", "2"]) {
  const { TopicArn } = await sns.send(new CreateTopicCommand({ Name: `js${version}`, Attributes: { SignatureVersion: version } }))
  await sns.send(new SubscribeCommand({ TopicArn, Protocol: "sqs", Endpoint: found.Attributes.QueueArn }))
  const published = await sns.send(
    new PublishCommand({
      TopicArn,
      Message: "grüße",
      Subject: "hello",
      MessageAttributes: { kind: { DataType: "String", StringValue: "new" } },
    }),
  )
  const [message] = (await sqs.send(new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 20 }))).Messages
  const envelope = JSON.parse(message.Body)
  const secured = { ...envelope, SigningCertURL: envelope.SigningCertURL.replace(/^http:\/\/[^/]*/, `https://${host}`) }
  results[version] = {
    isSame: envelope.MessageId === published.MessageId,
    message: envelope.Message,
    attributes: envelope.MessageAttributes,
    verdict: await validate(secured),
    altered: await validate({ ...secured, Message: "other" }),
    foreign: await validate({ ...secured, SigningCertURL: "https://example.com/a.pem" }),
  }
}
const { TopicArn } = await sns.send(new CreateTopicCommand({ Name: "js1", Attributes: { SignatureVersion: "1" } }))
const entries = [...Array(10).keys()].map((number) => ({ Id: `${number}`, Message: `${number}` }))
const batch = await sns.send(new PublishBatchCommand({ TopicArn, PublishBatchRequestEntries: entries }))
console.log(JSON.stringify({ ...results, batch: batch.Successful.length }))
